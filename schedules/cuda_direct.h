/** \file
 * CUDA schedules without staging: the function that applies one to a masked operator.
 */
#ifndef DISTILE_SCHEDULES_CUDA_DIRECT_H
#define DISTILE_SCHEDULES_CUDA_DIRECT_H

#include "Halide.h"
#include "schedules/cuda_direct_space.h"
#include "schedules/masked_operator.h"

namespace distile {

/** The counterpart of apply_cuda_schedule() for operators that run direct. */
std::string apply_cuda_direct_schedule(Halide::Pipeline pipeline, MaskedOperator &op, const Problem &problem,
                                       const Theta &theta);

}  // namespace distile

#endif
