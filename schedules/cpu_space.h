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

/** What its constraints ask for, for a CPU with some vector registers of some lanes. */
Problem cpu_problem(const OperatorFacts &op, int vector_lanes, int vector_registers);

/** At most how many of `group` register tiles a task runs over that copies its input first: all output channels read
 * the copy, which is bounded to a half of a typical level 2 cache. */
int staged_group(const OperatorFacts &op, int pixels, int group);

}  // namespace distile

#endif
