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

}  // namespace distile

#endif
