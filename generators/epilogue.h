/** \file
 * Epilogues, applied to a sum before it is stored.
 */
#ifndef DISTILE_GENERATORS_EPILOGUE_H
#define DISTILE_GENERATORS_EPILOGUE_H

#include "Halide.h"
#include <distile/distile.h>
#include <map>
#include <string>

namespace distile {

/** Maps the names in operator files to activations. */
const std::map<std::string, distile_activation> &activations_by_name();

/** Applies an activation to a float32 value. NaN stays NaN, and infinities become what they do in PyTorch. */
Halide::Expr apply_epilogue(distile_activation activation, const Halide::Expr &value, const Halide::Expr &slope);

}  // namespace distile

#endif
