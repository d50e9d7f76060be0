/** \file
 * What the table of types says, in C++.
 */
#ifndef DISTILE_FACTS_TYPE_FUNCTIONS_H
#define DISTILE_FACTS_TYPE_FUNCTIONS_H

#include "facts/types.h"
#include <cstdint>
#include <distile/distile.h>

namespace distile {

/** A row of the table. */
struct TypeFacts {
    int32_t number;
    const char *name;
    int32_t bits;
    bool is_quantized; /**< Whether tensors of it are. */
    int32_t least;     /**< The least integer; 0 for floating-point types. */
};

/** The row of a number, or one of no bits. The rows are the function's own: no object that embeds it has a symbol that
 * a linker would merge with another object's. */
constexpr TypeFacts facts_of_type(int32_t number) {
    constexpr TypeFacts rows[] = {
#define DISTILE_ROW(number, name, NAME, bits, ONNX, ...) {number, #name, bits, false, 0},
        DISTILE_FLOAT_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
#define DISTILE_ROW(number, name, NAME, bits, ONNX, least, most) {number, #name, bits, true, least},
            DISTILE_QUANTIZED_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
#define DISTILE_ROW(number, name, NAME, bits, ONNX, least, most) {number, #name, bits, false, least},
                DISTILE_FILTER_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
    };
    for (const TypeFacts &row : rows) {
        if (row.number == number) {
            return row;
        }
    }
    return {number, "an unknown type", 0, false, 0};
}

/** The place of a type, by its number, among the floating-point ones, from 0; -1 if it is none of them. */
constexpr int32_t float_type_place(int32_t number) {
#define DISTILE_ROW(number, name, NAME, bits, ONNX, ...) number,
    constexpr int32_t numbers[] = {DISTILE_FLOAT_TYPES(DISTILE_ROW)};
#undef DISTILE_ROW
    for (int32_t place = 0; place < DISTILE_NUM_FLOAT_TYPES; place++) {
        if (numbers[place] == number) {
            return place;
        }
    }
    return -1;
}

constexpr const char *type_name(distile_dtype dtype) {
    return facts_of_type(dtype).name;
}

/** Bytes per element; 0 where an element fills none. */
constexpr int64_t element_bytes(distile_dtype dtype) {
    return facts_of_type(dtype).bits / 8;
}

/** Whether tensors of a type, by its number, are quantized. */
constexpr bool is_quantized(int32_t number) {
    return facts_of_type(number).is_quantized;
}

}  // namespace distile

#endif
