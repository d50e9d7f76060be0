/** \file
 * The descriptor of a PolyKernel as C.
 */
#ifndef DISTILE_EMIT_H
#define DISTILE_EMIT_H

#include "plans/plan.h"
#include <string>
#include <vector>

namespace distile {

/** The name of what all variants of a plan share. `index` is the plan's place in its chain. */
std::string plan_name(const std::string &symbol, size_t index);

/** The name of a variant's generated function; that of its argv form ends in "_argv". */
std::string function_name(const std::string &symbol, size_t index, const std::string &variant);

/** Throws FileError unless plans can form one chain of PolyKernels: they must be for one operator and one backend, have
 * different names, and each must run on a device or in a context that cannot run those before it. */
void check_chain(const std::vector<Plan> &plans);

/** The C source of a chain of distile_polykernels, one for each plan. Only the first has a visible name, `symbol`; the
 * others are for devices and contexts that cannot run those before them. Throws as check_chain() does. */
std::string emit_polykernels(const std::vector<Plan> &plans, const std::string &symbol);

/** The header that declares it. */
std::string emit_header(const std::vector<Plan> &plans, const std::string &symbol);

}  // namespace distile

#endif
