/** \file
 * What every schedule writes: its knobs, and each statement as it applies it.
 */
#ifndef DISTILE_SCHEDULES_SCHEDULE_SOURCE_H
#define DISTILE_SCHEDULES_SCHEDULE_SOURCE_H

#include "schedules/masked_operator.h"
#include "schedules/space.h"
#include <sstream>
#include <string>

/** Applies a statement and appends its text to the stream `source`, so the source is exactly what was applied. */
#define DISTILE_APPLY(statement)                                                                                       \
    do {                                                                                                               \
        statement;                                                                                                     \
        source << #statement << ";\n";                                                                                 \
    } while (false)

namespace distile {

/** The start of every schedule's source: its knobs as constants. Throws Halide::CompileError unless the theta is legal.
 */
std::string declare_knobs(const Space &space, const Problem &problem, const Theta &theta);
/** The start of a masked operator's source; the operator must have the theta's granularity. */
std::string declare_knobs(const MaskedOperator &op, const Space &space, const Problem &problem, const Theta &theta);

}  // namespace distile

#endif
