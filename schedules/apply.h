/** \file
 * The choice of an operator's schedule on a target.
 */
#ifndef DISTILE_SCHEDULES_APPLY_H
#define DISTILE_SCHEDULES_APPLY_H

#include "schedules/masked_operator.h"
#include "schedules/token_operator.h"
#include <string>

namespace distile {

/** The facts that the constraints of an operator's space need, for a target. */
Problem problem_on(const MaskedOperator &op, const Halide::Target &target);
Problem problem_on(const TokenOperator &op, const Halide::Target &target);

/** Applies a theta of the operator's space for a target. Throws Halide::CompileError if the theta is illegal or for
 * another granularity, or other blocks, than the pipeline's. Returns the schedule as C++, one statement per line, with
 * the pipeline's Funcs and loop names. */
std::string apply_schedule(const Halide::Pipeline &pipeline, MaskedOperator &op, const Theta &theta,
                           const Halide::Target &target);
std::string apply_schedule(const Halide::Pipeline &pipeline, TokenOperator &op, const Theta &theta,
                           const Halide::Target &target);

}  // namespace distile

#endif
