/** \file
 * The functions of masks that the benchmarks measure, on every device, by their names in the files of rows.
 */
#ifndef DISTILE_BENCH_ALGEBRA_H
#define DISTILE_BENCH_ALGEBRA_H

#include <cstdint>
#include <distile/mask_algebra.h>
#include <functional>
#include <string>

namespace distile::bench {

/** A function of one or two masks, and their size. */
struct Algebra {
    std::function<distile_status(distile_mask *result, distile_mask *a, distile_mask *b)> call;
    int32_t height, width;
};

/** The function of a name for a row of height x width: the larger of operand and result has that size. Throws
 * std::runtime_error if there is none. */
Algebra find_algebra(const std::string &name, int32_t row_height, int32_t row_width);

}  // namespace distile::bench

#endif
