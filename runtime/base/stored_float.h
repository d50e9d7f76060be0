/** \file
 * The floating-point types of facts/types.h, element by element.
 */
#ifndef DISTILE_STORED_FLOAT_H
#define DISTILE_STORED_FLOAT_H

#include "facts/types.h"
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace distile {

// Functions for more instructions take these in, so that compilers make vectors of them.
#define DISTILE_ELEMENT __attribute__((always_inline)) inline

DISTILE_ELEMENT float float_of_bits(uint32_t bits) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}
DISTILE_ELEMENT uint32_t bits_of_float(float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}
/** Both are computed: there is no branch. */
DISTILE_ELEMENT uint32_t choose_bits(bool condition, uint32_t bits, uint32_t other) {
    return condition ? bits : other;
}

/** How a type, by its number, stores a float32. */
template<int32_t number> struct StoredFloat;

#define CHOOSE(condition, bits, other) choose_bits(condition, bits, other)
#define FLOAT_OF(bits) float_of_bits(bits)
#define BITS_OF(value) bits_of_float(value)
#define LESSER(a, b) choose_bits((a) < (b), a, b)
#define DISTILE_ROW(number, name, NAME, bits, ONNX, digits, widened, narrowed)                                         \
    template<> struct StoredFloat<number> {                                                                            \
        using Bits = std::conditional_t<(bits) == 8, uint8_t, std::conditional_t<(bits) == 16, uint16_t, uint32_t>>;   \
        static DISTILE_ELEMENT float to_float(Bits stored) {                                                           \
            const uint32_t x = stored;                                                                                 \
            return float_of_bits(widened);                                                                             \
        }                                                                                                              \
        static DISTILE_ELEMENT Bits from_float(float value) {                                                          \
            const uint32_t x = bits_of_float(value);                                                                   \
            return static_cast<Bits>(narrowed);                                                                        \
        }                                                                                                              \
    };
DISTILE_FLOAT_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
#undef LESSER
#undef BITS_OF
#undef FLOAT_OF
#undef CHOOSE

// Arrays of them.
template<int32_t number> DISTILE_ELEMENT void widen_all(const void *from, float *to, int64_t count) {
    const auto *const stored = static_cast<const typename StoredFloat<number>::Bits *>(from);
    for (int64_t i = 0; i < count; i++) {
        to[i] = StoredFloat<number>::to_float(stored[i]);
    }
}
template<int32_t number> DISTILE_ELEMENT void narrow_all(const float *from, void *to, int64_t count) {
    auto *const stored = static_cast<typename StoredFloat<number>::Bits *>(to);
    for (int64_t i = 0; i < count; i++) {
        stored[i] = StoredFloat<number>::from_float(from[i]);
    }
}

}  // namespace distile

#endif
