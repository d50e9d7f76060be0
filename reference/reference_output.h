/** \file
 * What plain loops compute of a masked output, and how they leave the rest.
 */
#ifndef DISTILE_REFERENCE_OUTPUT_H
#define DISTILE_REFERENCE_OUTPUT_H

#include <cstdint>
#include <vector>

namespace distile {

enum class PixelState : uint8_t { Kept, Zeroed, Computed };

struct ReferenceOutput {
    std::vector<PixelState> states; /**< [image][row][column] */
    std::vector<float> values; /**< [image][row][column][channel], as the type stores it; 0 where none is computed. */
    std::vector<double> exact; /**< The values before rounding; may be empty where nothing is rounded. */
    double largest = 0;        /**< The largest absolute value before the epilogue: a scale for errors. */
};

}  // namespace distile

#endif
