/** \file
 * Epilogues, applied to a sum before it is stored.
 */
#ifndef DISTILE_GENERATORS_EPILOGUE_H
#define DISTILE_GENERATORS_EPILOGUE_H

#include "Halide.h"
#include <map>
#include <string>

namespace distile {

enum class Epilogue { None, Relu, Relu6, Silu, Gelu, Sigmoid, Hardsigmoid, Hardswish };

/** Maps the names in operator files to epilogues. */
const std::map<std::string, Epilogue> &epilogue_names();

/** Applies an epilogue to a float32 value. NaN stays NaN; silu, gelu and hardswish of minus infinity are NaN, as in
 * PyTorch. */
Halide::Expr apply_epilogue(Epilogue epilogue, const Halide::Expr &value);

}  // namespace distile

#endif
