/** \file
 * The data types of tensors, those of facts/types.h.
 */
#ifndef DISTILE_TYPES_H
#define DISTILE_TYPES_H

#include "facts/type_functions.h"
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <distile/distile.h>

namespace distile {

/** The number in a caller's enumeration. In C it may be any int; reading such a value as a C++ enumeration is
 * undefined. */
template<typename Enum> int32_t raw(const Enum &value) {
    int32_t number = 0;
    static_assert(sizeof(value) == sizeof(number), "the enumerations of the C API are int");
    std::memcpy(&number, &value, sizeof(number));
    return number;
}

/** A number of at most 2^22, rounded to nearest, ties to even. (Static libraries of C's mathematics, in which rounding
 * depends on the CPU, do not link into every program.) */
inline float round_to_integer(float value) {
    constexpr float integers = 0x1.8p23f;
    return (value + integers) - integers;
}

struct Type {
    distile_dtype dtype;
    const char *name;
    int32_t bytes;
    /** Array conversions. From float32 they round to nearest, ties to even, and keep NaN. What is too large becomes
     * infinite, or where the type has no infinity, its largest number. To integers they saturate, and NaN becomes 0. */
    void (*from_float)(const float *from, void *to, size_t count);
    void (*to_float)(const void *from, float *to, size_t count);
};

/** Null if the number is not a type. */
const Type *find_type(int32_t dtype);

/** The type if layers compute in it; null for other numbers, and for integers. */
const Type *find_float_type(int32_t dtype);

/** A caller's data type in a message: its name, or the number if no type has it. */
struct TypeText {
    explicit TypeText(int32_t dtype);
    char text[16];
};

}  // namespace distile

#endif
