/** \file
 * TF32, to which weights are rounded.
 */
#ifndef DISTILE_KINDS_TF32_H
#define DISTILE_KINDS_TF32_H

#include <cstdint>
#include <cstring>

namespace distile {

/** Rounds to 10 bits of mantissa, to nearest even. Infinity stays, and NaN stays NaN. */
inline float round_to_tf32(float value) {
    constexpr uint32_t dropped = 0x1fff, infinity = 0x7f800000, quiet = 0x400000;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    const bool is_nan = (bits & 0x7fffffff) > infinity;
    bits = (is_nan ? bits | quiet : bits + dropped / 2 + (bits >> 13 & 1)) & ~dropped;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

}  // namespace distile

#endif
