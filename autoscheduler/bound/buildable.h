/** \file
 * What of a plan can be built: the plugin's refusals, without running a generator.
 */
#ifndef DISTILE_BUILDABLE_H
#define DISTILE_BUILDABLE_H

#include "plans/plan.h"

namespace distile {

/** The space that a variant's theta is a point of. */
const Space &space_of(const Plan &plan, const PlanVariant &variant);

/** Throws FileError, which names the plan and the variant, where this version cannot make the variant's code: its theta
 * is not legal for the operator and the target, or there is no such kernel for the operator. */
void check_buildable(const Plan &plan, const PlanVariant &variant);
/** Checks all variants. */
void check_buildable(const Plan &plan);

}  // namespace distile

#endif
