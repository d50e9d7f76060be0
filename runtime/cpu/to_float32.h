/** \file
 * Conversion of elements of any type to and from float32.
 */
#ifndef DISTILE_TO_FLOAT32_H
#define DISTILE_TO_FLOAT32_H

#include "runtime/base/types.h"
#include "runtime/cpu/simd/simd_level.h"

namespace distile {

/** Converts `count` elements, with the level's instructions if it has any for the type. */
inline void to_float32(const SimdLevel &level, distile_dtype dtype, const void *from, float *to, int64_t count) {
    switch (dtype) {
    case DISTILE_FLOAT16:
        level.widen_float16(static_cast<const uint16_t *>(from), to, count);
        break;
    case DISTILE_BFLOAT16:
        level.widen_bfloat16(static_cast<const uint16_t *>(from), to, count);
        break;
    default:
        find_type(dtype)->to_float(from, to, static_cast<size_t>(count));
    }
}

/** The reverse, to the nearest, ties to even. */
inline void from_float32(const SimdLevel &level, distile_dtype dtype, const float *from, void *to, int64_t count) {
    switch (dtype) {
    case DISTILE_FLOAT16:
        level.narrow_float16(from, static_cast<uint16_t *>(to), count);
        break;
    case DISTILE_BFLOAT16:
        level.narrow_bfloat16(from, static_cast<uint16_t *>(to), count);
        break;
    default:
        find_type(dtype)->from_float(from, to, static_cast<size_t>(count));
    }
}

}  // namespace distile

#endif
