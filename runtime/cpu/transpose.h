/** \file
 * Transposition of matrices. Pure functions over memory that the caller owns.
 */
#ifndef DISTILE_TRANSPOSE_H
#define DISTILE_TRANSPOSE_H

#include "simd_level.h"
#include <cstdint>

namespace distile {

/** to[c * to_stride + r] = from[r * from_stride + c], in an order that suits caches: fast also where strides are powers
 * of two. */
void transpose(const SimdLevel &level, const float *from, int64_t from_stride, float *to, int64_t to_stride,
               int64_t rows, int64_t columns);

/** The same for elements of some bytes, 2 or 4; strides in elements. */
void transpose_elements(const void *from, int64_t from_stride, void *to, int64_t to_stride, int64_t rows,
                        int64_t columns, int64_t bytes);

}  // namespace distile

#endif
