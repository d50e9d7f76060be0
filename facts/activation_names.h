/** \file
 * The names of activations in operator files, in Python and in ONNX's nodes, and which of them have a slope.
 */
#ifndef DISTILE_FACTS_ACTIVATION_NAMES_H
#define DISTILE_FACTS_ACTIVATION_NAMES_H

#include "facts/activations.h"
#include <string_view>

namespace distile {

/** By their numbers. */
constexpr const char *activation_names[] = {
#define DISTILE_ROW(number, name, NAME, value, gradient) #name,
    DISTILE_ACTIVATIONS(DISTILE_ROW)
#undef DISTILE_ROW
};

/** By their numbers: whether the value depends on a slope. */
constexpr bool activations_with_slope[] = {
#define DISTILE_ROW(number, name, NAME, value, gradient)                                                               \
    std::string_view(#value).find("slope") != std::string_view::npos,
    DISTILE_ACTIVATIONS(DISTILE_ROW)
#undef DISTILE_ROW
};

}  // namespace distile

#endif
