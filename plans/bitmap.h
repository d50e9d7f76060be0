/** \file
 * What plans say of code for GPUs that reads a bitmap of pruned weights of 16 bits.
 */
#ifndef DISTILE_PLANS_BITMAP_H
#define DISTILE_PLANS_BITMAP_H

#include "plans/plan.h"
#include <ostream>
#include <string>

namespace distile {

/** Whether there is such code for a type. */
bool has_bitmap(const DataType &type);

/** "", or why there is no such code for an operator. */
std::string why_no_bitmap(const Operator &op);

/** Whether plans for GPUs read a bitmap of an operator's weights unless they are asked for other code: there is such
 * code, at least nine tenths of its typical weights are 0, and at most 8 tokens are typical: with fewer zeros or more
 * tokens, all weights are faster. */
bool reads_bitmap(const Operator &op);

/** The target of such code for an operator, if it is for GPUs and one with such features has some; otherwise the target
 * as it is. */
std::string with_bitmap(const Operator &op, const std::string &target, const std::string &features);

/** The object that holds the code. */
const char *bitmap_object();

/** The C function run_FUNCTION that calls the code of a variant. */
void emit_call_of_bitmap(std::ostream &c, const Plan &plan, const PlanVariant &variant, const std::string &function);

/** The call of a plan's only variant as C, for people to read. */
std::string call_of_bitmap(const Plan &plan);

}  // namespace distile

#endif
