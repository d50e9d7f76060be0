/** \file
 * The enumerations of the C API whose numbers the runtime checks, and their enumerators' names for messages.
 */
#ifndef DISTILE_ENUMERATORS_H
#define DISTILE_ENUMERATORS_H

#include "facts/activations.h"
#include "runtime/base/context.h"
#include <algorithm>
#include <distile/layers.h>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <distile/stage.h>
#include <distile/tokens.h>
#include <iterator>

namespace distile {

/** `numbers` are all enumerators of a type, and `names` lists their names. */
template<typename Enum> struct Enumerators;

#define DISTILE_ENUMERATORS(type, ...)                                                                                 \
    template<> struct Enumerators<type> {                                                                              \
        static constexpr type numbers[] = {__VA_ARGS__};                                                               \
        static constexpr const char *names = #__VA_ARGS__;                                                             \
    };
DISTILE_ENUMERATORS(distile_math, DISTILE_MATH_DEFAULT, DISTILE_MATH_FLOAT32, DISTILE_MATH_TF32)
DISTILE_ENUMERATORS(distile_weights_order, DISTILE_OIHW, DISTILE_OHWI, DISTILE_HWIO, DISTILE_IOHW)
DISTILE_ENUMERATORS(distile_inactive, DISTILE_KEEP, DISTILE_ZERO)
DISTILE_ENUMERATORS(distile_store, DISTILE_STORE_EXACT, DISTILE_STORE_TILES)
DISTILE_ENUMERATORS(distile_pooling, DISTILE_MAX_POOLING, DISTILE_AVERAGE_POOLING)
DISTILE_ENUMERATORS(distile_combination, DISTILE_COPY, DISTILE_ADD, DISTILE_MULTIPLY)
DISTILE_ENUMERATORS(distile_window_kind, DISTILE_WINDOW_CONV, DISTILE_WINDOW_TRANSPOSED, DISTILE_WINDOW_UPSAMPLED)
DISTILE_ENUMERATORS(distile_clearing, DISTILE_CLEAR_WRITTEN, DISTILE_CLEAR_ALL, DISTILE_CLEAR_BACKGROUND)
DISTILE_ENUMERATORS(distile_step_kind, DISTILE_STEP_CONV2D, DISTILE_STEP_SCORES, DISTILE_STEP_MAX_POOL,
                    DISTILE_STEP_AVERAGE_POOL, DISTILE_STEP_UPSAMPLE, DISTILE_STEP_SUM, DISTILE_STEP_NORMALIZE,
                    DISTILE_STEP_ATTENTION, DISTILE_STEP_HALT)
DISTILE_ENUMERATORS(distile_norm, DISTILE_LAYER_NORM, DISTILE_RMS_NORM)
#undef DISTILE_ENUMERATORS

template<> struct Enumerators<distile_activation> {
#define DISTILE_ROW(number, name, NAME, value, gradient) DISTILE_ACTIVATION_##NAME,
    static constexpr distile_activation numbers[] = {DISTILE_ACTIVATIONS(DISTILE_ROW)};
#undef DISTILE_ROW
#define DISTILE_ROW(number, name, NAME, value, gradient) ", DISTILE_ACTIVATION_" #NAME
    static constexpr const char *names = &DISTILE_ACTIVATIONS(DISTILE_ROW)[2];
#undef DISTILE_ROW
};

/** Whether a caller's number is an enumerator. */
template<typename Enum> bool is_enumerator(const Enum &value) {
    const auto &numbers = Enumerators<Enum>::numbers;
    return std::any_of(std::begin(numbers), std::end(numbers), [&](Enum known) { return known == raw(value); });
}

/** Fails with BAD_VALUE unless a caller's number is an enumerator. Messages use the argument's `name`. */
template<typename Enum>
distile_status check_enumerator(distile_context *context, const char *call, const char *name, const Enum &value) {
    return is_enumerator(value) ? DISTILE_OK
                                : fail(context, DISTILE_ERROR_BAD_VALUE, "%s: %s is %d; it must be one of %s", call,
                                       name, raw(value), Enumerators<Enum>::names);
}

}  // namespace distile

#endif
