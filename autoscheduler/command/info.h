/** \file
 * Plans in words.
 */
#ifndef DISTILE_INFO_H
#define DISTILE_INFO_H

#include "plans/plan.h"

namespace distile {

/** A plan that can be built, for a person to read: the operator, where it runs, its variants, and which of them is
 * fastest when. */
std::string describe_plan(const Plan &plan);

}  // namespace distile

#endif
