/** \file
 * What plans say of code for tensor cores.
 */
#ifndef DISTILE_PLANS_TENSOR_CORE_H
#define DISTILE_PLANS_TENSOR_CORE_H

#include "plans/plan.h"
#include "schedules/tensor_core_space.h"
#include <ostream>
#include <string>
#include <vector>

namespace distile {

/** Whether there are kernels for an operator on such tensor cores. */
bool runs_on_tensor_cores(const Operator &op, TensorCores cores);

/** The type of the templates in which values are multiplied; null if tensor cores do not multiply it. */
const char *find_tensor_core_element(const DataType &type);
/** An operator's. Throws FileError if there is none. */
const char *tensor_core_element(const Operator &op);

/** The tensor cores that code for a GPU with these features uses, and those that a plan's code uses. */
TensorCores tensor_cores_of(const std::string &features);
TensorCores tensor_cores_of(const Plan &plan);

/** The C functions that call the variants for tensor cores, named by variant, and run_chosen_INDEX if the GPU chooses.
 * The code of the plan is embedded as the symbols NAME_code and NAME_code_end. `index` is the plan's place in its
 * chain. */
void emit_tensor_core_calls(std::ostream &c, const Plan &plan, size_t index, const std::string &name,
                            const std::vector<std::string> &functions);

/** Whether the plan's code chooses its variant itself, on the GPU: it has several, all for tensor cores. */
bool gpu_chooses(const Plan &plan);

/** The pixels of a mask for which a variant needs no list. */
int listless_pixels(const Plan &plan, const PlanVariant &variant);

/** The launch that a variant shares with others where the GPU chooses, from 1 on; 0: its own. */
int launch_of(const Plan &plan, const PlanVariant &variant);

/** The CUDA C++ of a plan's variants for tensor cores. One unit has all, because those from which the GPU chooses share
 * a kernel. */
std::string tensor_core_source(const Plan &plan);

}  // namespace distile

#endif
