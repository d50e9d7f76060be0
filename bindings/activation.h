/** \file
 * Activations by the names that frameworks give them.
 */
#ifndef DISTILE_BINDINGS_ACTIVATION_H
#define DISTILE_BINDINGS_ACTIVATION_H

#include <distile/distile.h>
#include <string>

namespace distile::bindings {

/** Fails for a name that no activation has. */
distile_activation activation_of(const std::string &name);

}  // namespace distile::bindings

#endif
