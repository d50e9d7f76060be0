/** \file
 * Weights of the pattern 2:4 for tests: of four consecutive input channels, two are not 0.
 */
#ifndef DISTILE_TESTS_TWO_OF_FOUR_H
#define DISTILE_TESTS_TWO_OF_FOUR_H

#include <cstdint>
#include <distile/polykernel.h>
#include <random>
#include <vector>

namespace distile {

/** Sets two of four input channels to 0, drawn for each, of a filter in the order DISTILE_HWIO. */
inline void keep_two_of_four(std::vector<float> &filter, const distile_conv2d &conv, std::mt19937 &random) {
    constexpr uint32_t fours = 4;
    const int64_t taps = int64_t{conv.kernel_h} * conv.kernel_w;
    for (int64_t tap = 0; tap < taps; tap++) {
        for (int32_t first = 0; first < conv.in_channels; first += fours) {
            for (int32_t o = 0; o < conv.out_channels; o++) {
                const uint32_t one = random() % fours, other = (one + 1 + random() % (fours - 1)) % fours;
                for (uint32_t i = 0; i < fours; i++) {
                    if (i != one && i != other) {
                        filter[((tap * conv.in_channels) + first + i) * conv.out_channels + o] = 0;
                    }
                }
            }
        }
    }
}

}  // namespace distile

#endif
