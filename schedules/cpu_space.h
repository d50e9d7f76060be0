/** \file
 * The space of CPU schedules. Independent of Halide, so a search can walk it anywhere.
 */
#ifndef DISTILE_SCHEDULES_CPU_SPACE_H
#define DISTILE_SCHEDULES_CPU_SPACE_H

#include "space.h"

namespace distile {

/** The loop order of the accumulator's reduction, outermost first. */
enum ReductionOrder {
    KyKxCi = 0, /**< Only `unroll` input channels unrolled. */
    CiKyKx = 1, /**< The kernel unrolled inside the input channels. */
    KyCiKx = 2  /**< One kernel row unrolled inside the input channels. */
};

/** With more threads than a few, the pixels are cut into this many shares a thread: cores differ in speed, and a share
 * that ends late would hold up the call. */
constexpr int few_threads = 2, shares_of_many = 4;

/** The space of CPU schedules. */
const Space &cpu_space();

/** The facts that its constraints need, for a CPU with this many vector lanes and registers. */
Problem cpu_problem(const OperatorFacts &op, int vector_lanes, int vector_registers);

}  // namespace distile

#endif
