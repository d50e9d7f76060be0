/** \file
 * Conversions of rows from and to float32, inlined into each level, where the compiler vectorizes them. All levels give
 * the same bits.
 */
#ifndef DISTILE_TYPE_LOOPS_H
#define DISTILE_TYPE_LOOPS_H

#include "facts/type_functions.h"
#include "runtime/base/stored_float.h"
#include "runtime/cpu/simd/simd_level.h"
#include <distile/distile.h>

// NOLINTBEGIN(bugprone-macro-parentheses): `target` are attributes.
/** The conversions of a type, by its number. A level that has instructions for one specializes it. */
#define DISTILE_TYPE_LOOPS(target)                                                                                     \
    template<int32_t number> struct TypeLoops {                                                                        \
        target static void widen(const void *from, float *to, int64_t count) {                                         \
            widen_all<number>(from, to, count);                                                                        \
        }                                                                                                              \
        target static void narrow(const float *from, void *to, int64_t count) {                                        \
            narrow_all<number>(from, to, count);                                                                       \
        }                                                                                                              \
    };
// NOLINTEND(bugprone-macro-parentheses)

/** An array of all TypeLoops. */
#define DISTILE_CONVERSIONS() constexpr FloatConversion conversions[] = {DISTILE_FLOAT_TYPES(DISTILE_CONVERSION)};
#define DISTILE_CONVERSION(number, name, NAME, bits, ONNX, digits, widened, narrowed)                                  \
    {TypeLoops<number>::widen, TypeLoops<number>::narrow},

#endif
