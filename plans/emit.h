/** \file
 * The descriptor of a PolyKernel as C.
 */
#ifndef DISTILE_EMIT_H
#define DISTILE_EMIT_H

#include "plan.h"
#include <string>
#include <vector>

namespace distile {

/** The name of the generated function of a variant; its argv form has "_argv" behind it. `index` is the plan's in its
 * chain. */
std::string function_name(const std::string &symbol, size_t index, const std::string &variant);

/** Refuses plans that cannot be one chain of PolyKernels: of different operators, two with one name, of which one would
 * never be taken, or of a backend that has no chains. Throws FileError. */
void check_chain(const std::vector<Plan> &plans);

/** The C source of a chain of distile_polykernels, one for each plan, of which only the first has a visible name,
 * `symbol`: each stands for devices that lack a feature of those before it. Throws as check_chain() does. */
std::string emit_polykernels(const std::vector<Plan> &plans, const std::string &symbol);

/** The header that declares it. */
std::string emit_header(const std::vector<Plan> &plans, const std::string &symbol);

}  // namespace distile

#endif
