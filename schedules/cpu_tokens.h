/** \file
 * CPU schedules of operators that read a key or a value.
 */
#ifndef DISTILE_SCHEDULES_CPU_TOKENS_H
#define DISTILE_SCHEDULES_CPU_TOKENS_H

#include "schedules/space.h"
#include "schedules/token_operator.h"
#include <string>

namespace distile {

/** The facts that the constraints need, for a target. */
Problem cpu_problem(const TokenOperator &op, const Halide::Target &target);

/** Applies a theta of the operator's space for a target, and returns the schedule as apply_schedule(). Throws
 * Halide::CompileError if the theta is illegal. */
std::string apply_cpu_token_schedule(TokenOperator &op, const Theta &theta, const Halide::Target &target);

}  // namespace distile

#endif
