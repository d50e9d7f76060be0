/** \file
 * What plans say of code for GPUs that multiplies weights of the pattern 2:4 by sparse tensor cores.
 */
#ifndef DISTILE_PLANS_TWO_FOUR_H
#define DISTILE_PLANS_TWO_FOUR_H

#include "plans/plan.h"
#include <ostream>
#include <string>

namespace distile {

/** Whether there is such code for a type. */
bool has_two_four(const DataType &type);

/** "", or why there is no such code for an operator, whatever its weights. */
std::string why_no_two_four(const Operator &op);

/** Whether plans for GPUs have such code for an operator unless they are asked for other code: there is some, its file
 * says that its weights have the pattern, and a bitmap of them is not faster. */
bool keeps_two_of_four(const Operator &op);

/** The target of such code for an operator, if it is for GPUs and one with such features has some; otherwise the target
 * as it is. */
std::string with_two_four(const Operator &op, const std::string &target, const std::string &features);

/** The object that holds the code. */
const char *two_four_object();

/** The C function run_FUNCTION that calls the code of a variant. */
void emit_call_of_two_four(std::ostream &c, const Plan &plan, const PlanVariant &variant, const std::string &function);

/** The call of a plan's only variant as C, for people to read. */
std::string call_of_two_four(const Plan &plan);

}  // namespace distile

#endif
