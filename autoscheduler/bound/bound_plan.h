/** \file
 * Plans that the bound makes without measuring anything: for operators that were never tuned, and for CPUs that lack
 * what an operator's tuned plans need.
 */
#ifndef DISTILE_BOUND_PLAN_H
#define DISTILE_BOUND_PLAN_H

#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/code_choice.h"
#include "autoscheduler/bound/device_profile.h"
#include "plans/plan.h"
#include <vector>

namespace distile {

/** The plan of a device: up to `masked` variants that the bound finds fastest together over densities from .02 to .75,
 * a dense one, and the bound's times for several numbers of threads. Throws FileError where no schedule is legal. */
Plan bound_plan(const std::string &name, const Operator &op, const DeviceProfile &device, int masked = 3);
/** The plan for the target and the math that `code` names. The function above takes target_for(op, device) and float32.
 */
Plan bound_plan(const std::string &name, const Operator &op, const DeviceProfile &device, const CodeChoice &code,
                int masked = 3);

/** A plan to make. */
struct PlannedCode {
    std::string name;
    DeviceProfile device; /**< A built-in profile, which stands for the devices of the plan. */
    CodeChoice code;
};

/** The devices that a target is for, as plans' names end: "avx512", or "avx512_bf16" for dot products. */
std::string level_of(const std::string &target);

/** The plans of an operator for a backend's devices on a platform, the most demanding first. With
 * `tensor_cores` those for tensor cores, which multiply float32 in TF32, stand before the others if there are such
 * kernels for the operator. */
std::vector<PlannedCode> planned_codes(const Operator &op, const Backend &backend, bool tensor_cores,
                                       const Platform &platform = host_platform());

/** These plans, made by the bound. Throws FileError where no schedule is legal. */
std::vector<Plan> bound_plans(const Operator &op, const Backend &backend, bool tensor_cores = false,
                              const Platform &platform = host_platform());

/** Up to `count` schedules that are worth measuring first: those that the bound ranks best at each density in turn,
 * first those that differ from all before in two knobs or more. Throws FileError where no schedule is legal. */
std::vector<Theta> best_by_bound(const Workload &workload, const std::vector<double> &densities, size_t count);

/** The backend that has portable plans. */
const Backend &portable_backend();

/** A plan of a fine and a dense variant, scheduled by the bound for the vectors that every CPU of a platform has.
 * It has no times, because they would differ from CPU to CPU, and no coarser variant, because none is taken without
 * times. Throws FileError where no schedule is legal. */
Plan portable_plan(const Operator &op, const Platform &platform = host_platform());

/** Whether every CPU of its architecture runs a plan. */
bool is_portable(const Plan &plan);

}  // namespace distile

#endif
