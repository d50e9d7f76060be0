/** \file
 * Plans that the bound makes without measuring anything: for operators that were never tuned, and for CPUs that lack
 * what an operator's tuned plans need.
 */
#ifndef DISTILE_BOUND_PLAN_H
#define DISTILE_BOUND_PLAN_H

#include "bound.h"
#include "device_profile.h"
#include "plan.h"
#include <vector>

namespace distile {

/** The plan of a device: up to `masked` variants that the bound finds fastest together over densities from .02 to .75,
 * a dense one, and the bound's times for several numbers of threads. Throws FileError where no schedule is legal. */
Plan bound_plan(const std::string &name, const Operator &op, const DeviceProfile &device, int masked = 3);

/** The built-in profiles of a backend that stand for the devices of a plan, the most demanding first. */
std::vector<DeviceProfile> planned_devices(const Backend &backend);

/** The plans of an operator for these devices. Throws FileError where no schedule is legal. */
std::vector<Plan> bound_plans(const Operator &op, const Backend &backend);

/** Up to `count` schedules that are worth measuring first: those that the bound ranks best at each density in turn,
 * first those that differ from all before in two knobs or more. Throws FileError where no schedule is legal. */
std::vector<Theta> best_by_bound(const Workload &workload, const std::vector<double> &densities, size_t count);

/** The name of the plan for a device: the operator's, and the device's level, for instance "avx512". */
std::string plan_name(const Operator &op, const DeviceProfile &device);

/** The backend that has portable plans. */
const Backend &portable_backend();

/** A plan of a fine and a dense variant, scheduled by the bound for 4 lanes and 16 registers, which every x86-64 CPU
 * has. It has no times, because they would differ from CPU to CPU, and no coarser variant, because none is taken
 * without times. Throws FileError where no schedule is legal. */
Plan portable_plan(const Operator &op);

}  // namespace distile

#endif
