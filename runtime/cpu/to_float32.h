/** \file
 * Conversion of elements of any type to and from float32.
 */
#ifndef DISTILE_TO_FLOAT32_H
#define DISTILE_TO_FLOAT32_H

#include "runtime/base/types.h"
#include "runtime/cpu/simd/simd_level.h"

namespace distile {

/** Converts `count` elements, those of floating-point types with the level's instructions. */
inline void to_float32(const SimdLevel &level, distile_dtype dtype, const void *from, float *to, int64_t count) {
    const int32_t place = float_type_place(dtype);
    if (place < 0) {
        find_type(dtype)->to_float(from, to, static_cast<size_t>(count));
    } else {
        level.conversions[place].widen(from, to, count);
    }
}

/** The reverse, to the nearest, ties to even. */
inline void from_float32(const SimdLevel &level, distile_dtype dtype, const float *from, void *to, int64_t count) {
    const int32_t place = float_type_place(dtype);
    if (place < 0) {
        find_type(dtype)->from_float(from, to, static_cast<size_t>(count));
    } else {
        level.conversions[place].narrow(from, to, count);
    }
}

}  // namespace distile

#endif
