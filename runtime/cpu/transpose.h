/** \file
 * Matrix transposition. Pure functions on caller-owned memory.
 */
#ifndef DISTILE_TRANSPOSE_H
#define DISTILE_TRANSPOSE_H

#include "runtime/cpu/simd/simd_level.h"
#include <cstdint>

namespace distile {

/** to[c * to_stride + r] = from[r * from_stride + c], in a cache-friendly order that is fast even for power-of-two
 * strides. */
void transpose(const SimdLevel &level, const float *from, int64_t from_stride, float *to, int64_t to_stride,
               int64_t rows, int64_t columns);

/** transpose() for elements of 1, 2 or 4 bytes; strides in elements. */
void transpose_elements(const void *from, int64_t from_stride, void *to, int64_t to_stride, int64_t rows,
                        int64_t columns, int64_t bytes);

}  // namespace distile

#endif
