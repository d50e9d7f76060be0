/** \file
 * What plans say of attention and its products on tensor cores: one kernel for each variant.
 */
#ifndef DISTILE_PLANS_ATTENTION_CODE_H
#define DISTILE_PLANS_ATTENTION_CODE_H

#include "plans/plan.h"
#include <ostream>
#include <string>
#include <vector>

namespace distile {

/** Whether an operator is attention or one of its products. */
bool reads_keys(const Operator &op);

/** These do for operators that read keys what the functions of tensor_core.h do, which call them. */
void emit_attention_calls(std::ostream &c, const Plan &plan, size_t index, const std::string &name,
                          const std::vector<std::string> &functions);
std::string attention_source(const Plan &plan);

}  // namespace distile

#endif
