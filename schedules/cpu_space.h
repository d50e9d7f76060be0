/** \file
 * The space of CPU schedules. Knows no Halide, so that a search can walk it anywhere.
 */
#ifndef DISTILE_SCHEDULES_CPU_SPACE_H
#define DISTILE_SCHEDULES_CPU_SPACE_H

#include "space.h"

namespace distile {

/** How the accumulator's reduction is nested, outermost first. */
enum ReductionOrder {
    KyKxCi = 0, /**< Nothing unrolled but `unroll` input channels. */
    CiKyKx = 1, /**< The kernel unrolled inside the input channels. */
    KyCiKx = 2  /**< One kernel row unrolled inside the input channels. */
};

/** The space of CPU schedules. */
const Space &cpu_space();

/** What its constraints depend on, for a CPU with so many vector registers of so many lanes. */
Problem cpu_problem(const OperatorFacts &op, int vector_lanes, int vector_registers);

/** The number of register tiles, at most `group`, that a task runs over if it copies its input first. All output
 * channels read the copy, which must fit half of a typical level 2 cache. */
int staged_group(const OperatorFacts &op, int pixels, int group);

}  // namespace distile

#endif
