/** \file
 * CPU schedules: the function that applies one to a masked operator.
 */
#ifndef DISTILE_SCHEDULES_CPU_H
#define DISTILE_SCHEDULES_CPU_H

#include "Halide.h"
#include "cpu_space.h"
#include "masked_operator.h"

namespace distile {

/** What the constraints ask for, for a target. */
Problem cpu_problem(const MaskedOperator &op, const Halide::Target &target);

/** Applies a theta that is legal for cpu_problem(op, target). Throws Halide::CompileError if it is not, or
 * is for another granularity than the operator's pipeline. Returns the schedule as C++, one statement a line, over
 * Funcs and loop names as they appear in it. */
std::string apply_cpu_schedule(MaskedOperator &op, const Theta &theta, const Halide::Target &target);

}  // namespace distile

#endif
