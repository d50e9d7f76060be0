/** \file
 * What the table of types says, in C++.
 */
#ifndef DISTILE_FACTS_TYPE_FUNCTIONS_H
#define DISTILE_FACTS_TYPE_FUNCTIONS_H

#include "facts/types.h"
#include <cstdint>
#include <distile/distile.h>

namespace distile {

/** The name of a valid type. */
constexpr const char *type_name(distile_dtype dtype) {
    switch (dtype) {
#define DISTILE_ROW(number, name, NAME, ...)                                                                           \
    case DISTILE_##NAME:                                                                                               \
        return #name;
        DISTILE_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
    }
    return "an unknown type";
}

/** Bytes per element of a valid type; 0 where an element fills none. */
constexpr int64_t element_bytes(distile_dtype dtype) {
    switch (dtype) {
#define DISTILE_ROW(number, name, NAME, bits, ONNX, ...)                                                               \
    case DISTILE_##NAME:                                                                                               \
        return (bits) / 8;
        DISTILE_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
    }
    return 0;
}

/** Whether tensors of a type, by its number, are quantized. */
constexpr bool is_quantized(int32_t dtype) {
#define DISTILE_ROW(number, name, NAME, bits, ONNX, least, most) || dtype == (number)
    return false DISTILE_QUANTIZED_TYPES(DISTILE_ROW);
#undef DISTILE_ROW
}

/** The least number of a type of integers; 0 for others. */
constexpr int32_t least_of(distile_dtype dtype) {
    switch (dtype) {
#define DISTILE_ROW(number, name, NAME, bits, ONNX, least, most)                                                       \
    case DISTILE_##NAME:                                                                                               \
        return least;
        DISTILE_QUANTIZED_TYPES(DISTILE_ROW)
        DISTILE_FILTER_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
#define DISTILE_ROW(number, name, NAME, ...) case DISTILE_##NAME:
        DISTILE_FLOAT_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
        break;
    }
    return 0;
}

/** The place of a type, by its number, among the floating-point ones, from 0; -1 if it is none of them. */
constexpr int32_t float_type_place(int32_t dtype) {
    constexpr int32_t numbers[] = {
#define DISTILE_ROW(number, name, NAME, bits, ONNX, digits, widened, narrowed) number,
        DISTILE_FLOAT_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
    };
    for (int32_t place = 0; place < DISTILE_NUM_FLOAT_TYPES; place++) {
        if (numbers[place] == dtype) {
            return place;
        }
    }
    return -1;
}

}  // namespace distile

#endif
