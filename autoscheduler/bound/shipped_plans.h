/** \file
 * Plans that ship, found by what they compute.
 */
#ifndef DISTILE_SHIPPED_PLANS_H
#define DISTILE_SHIPPED_PLANS_H

#include "autoscheduler/bound/bound_plan.h"
#include <optional>
#include <string>
#include <vector>

namespace distile {

/** A plan for an operator, and the file whose schedules and times it has; "" where the bound made it. */
struct ChosenPlan {
    Plan plan;
    std::string shipped;
};

/** The plan in a folder for such code of the operator, or of one that differs in its name, activation and residual
 * alone: the operator's own, else the first by the name of its file. Passes over files that are no plans, and those
 * whose code cannot be built for the operator. */
std::optional<ChosenPlan> shipped_plan(const std::string &folder, const Operator &op, const PlannedCode &planned);

/** As bound_plans(), with the plans of a folder where it has them. A folder that is not there has none. */
std::vector<ChosenPlan> shipped_or_bound_plans(const std::string &folder, const Operator &op, const Backend &backend,
                                               bool tensor_cores = false, const Platform &platform = host_platform());

}  // namespace distile

#endif
