/** \file
 * Activations by the names that frameworks give them.
 */
#ifndef DISTILE_BINDINGS_ACTIVATION_H
#define DISTILE_BINDINGS_ACTIVATION_H

#include <distile/polykernel.h>
#include <string>

namespace distile::bindings {

/** "none", "relu", "relu6", "silu", "gelu", "sigmoid", "hardsigmoid" or "hardswish"; fails for others. Layers have the
 * same numbers (distile_activation). */
distile_epilogue epilogue_of(const std::string &activation);

}  // namespace distile::bindings

#endif
