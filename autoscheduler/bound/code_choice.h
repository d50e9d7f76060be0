/** \file
 * What code schedules are ranked and measured for. It decides where the code comes from, and so which space is
 * searched.
 */
#ifndef DISTILE_CODE_CHOICE_H
#define DISTILE_CODE_CHOICE_H

#include "autoscheduler/bound/bound.h"
#include "plans/plan.h"
#include <string>

namespace distile {

struct CodeChoice {
    std::string target;        /**< The Halide target, as plans hold it. */
    Math math = Math::Float32; /**< How float32 operators multiply. */
};

/** "", or why there are no kernels for an operator on such tensor cores. */
std::string why_not_on_tensor_cores(const Operator &op, TensorCores cores);

/** Where the code of an operator comes from: that of nonzero weights if it skips zeros, on a GPU in float32; that
 * of a bitmap of weights if it has few tokens on a GPU in 16 bits; that of two of four weights if these have the
 * pattern; the kernels for dot products if the target has instructions for the operator's type; else the templates for
 * tensor cores if they serve the operator, and it is not float32 or may be multiplied in TF32; else Halide. */
Language language_of(const Operator &op, const CodeChoice &choice);

/** The code for a device. Without a target (""), it is for the tensor cores wherever operator, math and device allow,
 * and otherwise for every device of the kind. Throws FileError where there is no such code. */
CodeChoice choose_code(const Operator &op, const DeviceProfile &device, const std::string &target, Math math);

/** The target of code for a device, or for one with its features on a platform. That of dot products names the
 * instructions that they use. */
std::string target_for(const Operator &op, const DeviceProfile &device);
std::string target_for(const Operator &op, const DeviceProfile &device, const Platform &platform);

/** An operator at its typical size, on all cores of a device, by such code. */
Workload workload_of(const Operator &op, const DeviceProfile &device, const CodeChoice &choice);

/** A plan for such code, with no variants yet. */
Plan make_plan(const std::string &name, const Operator &op, const Backend &backend, const CodeChoice &choice);

/** Adds a variant of such code to a plan that make_plan() made. */
void add_variant(Plan &plan, const std::string &name, const Theta &theta, bool dense);

}  // namespace distile

#endif
