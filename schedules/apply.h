/** \file
 * How schedules are applied: with the source beside it.
 */
#ifndef DISTILE_SCHEDULES_APPLY_H
#define DISTILE_SCHEDULES_APPLY_H

#include "masked_operator.h"
#include <sstream>
#include <string>

/** Applies a statement, and appends it to the stream `source`: the source is the very statements that are applied. */
#define DISTILE_APPLY(statement)                                                                                       \
    do {                                                                                                               \
        statement;                                                                                                     \
        source << #statement << ";\n";                                                                                 \
    } while (false)

namespace distile {

/** What the constraints of an operator's space ask for, for a target. */
Problem problem_on(const MaskedOperator &op, const Halide::Target &target);

/** Applies a theta of the operator's space for a target. Throws Halide::CompileError if the theta is not legal, or is
 * for another granularity than the operator's pipeline. Returns the schedule as C++, one statement a line, over Funcs
 * and loop names as they appear in it. */
std::string apply_schedule(const Halide::Pipeline &pipeline, MaskedOperator &op, const Theta &theta,
                           const Halide::Target &target);

// What schedules share.

/** How the source of every schedule begins: its knobs as constants. Throws Halide::CompileError unless the theta is
 * legal, and for the granularity that the pipeline was built for. */
std::string declare_knobs(const MaskedOperator &op, const Space &space, const Problem &problem, const Theta &theta);

/** Throws Halide::CompileError unless the operator has one stage, as on a GPU. */
void check_gpu_stages(const MaskedOperator &op);

/** Splits the output's channels into `vector` and `lane` for a GPU. */
void vectorize_gpu_output(MaskedOperator &op, int lanes, std::ostream &source);

}  // namespace distile

#endif
