/** \file
 * How schedules are applied: with the source beside it.
 */
#ifndef DISTILE_SCHEDULES_APPLY_H
#define DISTILE_SCHEDULES_APPLY_H

#include "masked_operator.h"
#include <string>

/** Applies a statement, and appends it to the stream `source`: the source is the very statements that are applied. */
#define DISTILE_APPLY(statement)                                                                                       \
    do {                                                                                                               \
        statement;                                                                                                     \
        source << #statement << ";\n";                                                                                 \
    } while (false)

namespace distile {

/** How the source of every schedule begins: its knobs as constants. Throws Halide::CompileError unless the theta is
 * legal, and for the granularity that the pipeline was built for. */
std::string declare_knobs(const MaskedOperator &op, const Space &space, const Problem &problem, const Theta &theta);

}  // namespace distile

#endif
