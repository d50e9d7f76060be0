/** \file
 * The data types of tensors, as a table. A further type is one row of it.
 */
#ifndef DISTILE_TYPES_H
#define DISTILE_TYPES_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <distile/distile.h>

namespace distile {

/** The number that an enumeration of the caller's holds. In C it may be any, which a C++ enumeration must not be. */
template<typename Enum> int32_t raw(const Enum &value) {
    int32_t number = 0;
    static_assert(sizeof(value) == sizeof(number), "the enumerations of the C API are int");
    std::memcpy(&number, &value, sizeof(number));
    return number;
}

struct Type {
    distile_dtype dtype;
    const char *name;
    int32_t bytes;
    /** Conversions of arrays; from float32 rounds to the nearest, ties to even, and keeps NaN. */
    void (*from_float)(const float *from, void *to, size_t count);
    void (*to_float)(const void *from, float *to, size_t count);
};

/** Null for a number that is no type. */
const Type *find_type(int32_t dtype);

/** Bytes of an element of a type that was checked. */
inline int64_t element_bytes(distile_dtype dtype) {
    return find_type(dtype)->bytes;
}

/** The names of all types, for messages. */
const char *type_names();

}  // namespace distile

#endif
