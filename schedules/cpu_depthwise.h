/** \file
 * CPU schedules for depthwise convolutions: the function that applies one.
 */
#ifndef DISTILE_SCHEDULES_CPU_DEPTHWISE_H
#define DISTILE_SCHEDULES_CPU_DEPTHWISE_H

#include "Halide.h"
#include "schedules/depthwise_space.h"
#include "schedules/masked_operator.h"

namespace distile {

/** The counterpart of apply_cpu_schedule() for depthwise convolutions. */
std::string apply_cpu_depthwise_schedule(MaskedOperator &op, const Theta &theta, const Halide::Target &target);

}  // namespace distile

#endif
