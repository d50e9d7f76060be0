/** \file
 * The names of activations in operator files, in Python and in ONNX's nodes.
 */
#ifndef DISTILE_FACTS_ACTIVATION_NAMES_H
#define DISTILE_FACTS_ACTIVATION_NAMES_H

#include "facts/activations.h"

namespace distile {

/** By their numbers. */
constexpr const char *activation_names[] = {
#define DISTILE_ROW(number, name, NAME, value, gradient) #name,
    DISTILE_ACTIVATIONS(DISTILE_ROW)
#undef DISTILE_ROW
};

}  // namespace distile

#endif
