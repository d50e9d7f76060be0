/** \file
 * Applies schedules and records their source.
 */
#ifndef DISTILE_SCHEDULES_APPLY_H
#define DISTILE_SCHEDULES_APPLY_H

#include "schedules/masked_operator.h"
#include "schedules/token_operator.h"
#include <sstream>
#include <string>

/** Applies a statement and appends its text to the stream `source`, so the source is exactly what was applied. */
#define DISTILE_APPLY(statement)                                                                                       \
    do {                                                                                                               \
        statement;                                                                                                     \
        source << #statement << ";\n";                                                                                 \
    } while (false)

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

// Shared by the schedules.

/** The start of every schedule's source: its knobs as constants. Throws Halide::CompileError unless the theta is legal.
 */
std::string declare_knobs(const Space &space, const Problem &problem, const Theta &theta);
/** The start of a masked operator's source; the operator must have the theta's granularity. */
std::string declare_knobs(const MaskedOperator &op, const Space &space, const Problem &problem, const Theta &theta);

/** Throws Halide::CompileError unless the operator has exactly one stage, as on a GPU. */
void check_gpu_stages(const MaskedOperator &op);

/** Splits the output's channels into `vector` and `lane` for a GPU. */
void vectorize_gpu_output(MaskedOperator &op, int lanes, std::ostream &source);

}  // namespace distile

#endif
