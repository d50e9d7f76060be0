/** \file
 * Division by a multiplication, shared by hosts and kernels.
 */
#ifndef DISTILE_DIVISOR_H
#define DISTILE_DIVISOR_H

#include <cstdint>

namespace distile {

/** A precomputed divisor for numbers below 2^31. */
struct Divisor {
    uint32_t value, multiplier, shift;
};

/** n / value is the upper word of n * multiplier, shifted, unless value is 1: rounding the multiplier up adds less than
 * 1 / value. */
constexpr Divisor make_divisor(uint32_t value) {
    uint32_t bits = 1;
    while (uint64_t{1} << bits < value) {
        bits++;
    }
    const uint64_t power = uint64_t{1} << (31 + bits);
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): no extent is 0.
    return {value, value == 1 ? 0 : static_cast<uint32_t>((power + value - 1) / value), bits - 1};
}

}  // namespace distile

#endif
