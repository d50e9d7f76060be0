/** \file
 * What plans say of code for tensor cores.
 */
#ifndef DISTILE_PLANS_TENSOR_CORE_H
#define DISTILE_PLANS_TENSOR_CORE_H

#include "plan.h"
#include "tensor_core_space.h"
#include <ostream>
#include <string>

namespace distile {

/** The name of the kernel in the code of every variant. */
extern const char *const tensor_core_kernel;

/** Whether there are kernels for an operator at all. */
bool runs_on_tensor_cores(const Operator &op);

/** Those that the target of a plan has. */
TensorCores tensor_cores_of(const Plan &plan);

/** The C function `run` that calls a variant, whose code is embedded as the symbols NAME_code and NAME_code_end. */
void emit_tensor_core_call(std::ostream &c, const Plan &plan, const PlanVariant &variant, const std::string &run,
                           const std::string &name);

/** The pixels of a mask for which a variant needs no list. */
int listless_pixels(const PlanVariant &variant);

/** The CUDA C++ of a variant. */
std::string tensor_core_source(const Plan &plan, const PlanVariant &variant);

}  // namespace distile

#endif
