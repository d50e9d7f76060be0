/** \file
 * Transposition of matrices. Pure functions over memory that the caller owns.
 */
#ifndef DISTILE_TRANSPOSE_H
#define DISTILE_TRANSPOSE_H

#include "levels.h"
#include <cstdint>

namespace distile {

/** Rows and columns that are transposed together: a cache line of each. */
constexpr int64_t transpose_block = 16;

/** The inner loop. All levels give the same results. */
struct TransposeLevel {
    const char *name;

    /** to[c * to_stride + r] = from[r * from_stride + c] for r < rows and c < columns. */
    void (*transpose)(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t rows,
                      int64_t columns);
};

Levels<TransposeLevel> supported_transpose_levels();

/** The same in an order that suits caches: fast also where strides are powers of two. */
void transpose(const TransposeLevel &level, const float *from, int64_t from_stride, float *to, int64_t to_stride,
               int64_t rows, int64_t columns);

/** The same for elements of some bytes, 2 or 4; strides in elements. */
void transpose_elements(const void *from, int64_t from_stride, void *to, int64_t to_stride, int64_t rows,
                        int64_t columns, int64_t bytes);

}  // namespace distile

#endif
