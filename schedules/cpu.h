/** \file
 * CPU schedules: the function that applies one to a masked operator.
 */
#ifndef DISTILE_SCHEDULES_CPU_H
#define DISTILE_SCHEDULES_CPU_H

#include "Halide.h"
#include "schedules/cpu_space.h"
#include "schedules/masked_operator.h"

namespace distile {

/** The facts that the constraints need, for a target. */
Problem cpu_problem(const MaskedOperator &op, const Halide::Target &target);

/** Applies a theta that is legal for cpu_problem(op, target). Throws and returns as apply_schedule(). */
std::string apply_cpu_schedule(MaskedOperator &op, const Theta &theta, const Halide::Target &target);

}  // namespace distile

#endif
