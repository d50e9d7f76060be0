/** \file
 * CPU schedules of depthwise convolutions: the function that applies one.
 */
#ifndef DISTILE_SCHEDULES_CPU_DEPTHWISE_H
#define DISTILE_SCHEDULES_CPU_DEPTHWISE_H

#include "Halide.h"
#include "depthwise_space.h"
#include "masked_operator.h"

namespace distile {

/** Does for a depthwise convolution what apply_cpu_schedule() does for others. */
std::string apply_cpu_depthwise_schedule(MaskedOperator &op, const Theta &theta, const Halide::Target &target);

}  // namespace distile

#endif
