/** \file
 * Activations by the names that frameworks give them.
 */
#ifndef DISTILE_BINDINGS_ACTIVATION_H
#define DISTILE_BINDINGS_ACTIVATION_H

#include <distile/distile.h>
#include <string>

namespace distile::bindings {

struct Activation {
    distile_activation function;
    float slope; /**< The given one or the default, for a function that has one. */
};

/** From a name, or one with its slope behind it, NAME(0.2). Fails for a name that no activation has, and for a slope
 * that is no number or that its activation lacks. */
Activation activation_of(const std::string &text);

}  // namespace distile::bindings

#endif
