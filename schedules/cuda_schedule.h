/** \file
 * CUDA schedules: the function that applies one to a masked operator.
 */
#ifndef DISTILE_SCHEDULES_CUDA_SCHEDULE_H
#define DISTILE_SCHEDULES_CUDA_SCHEDULE_H

#include "Halide.h"
#include "schedules/cuda_space.h"
#include "schedules/masked_operator.h"

namespace distile {

/** Applies a theta that is legal for a problem of a GPU and adds the lowering passes that it needs to the pipeline.
 * Throws and returns as apply_schedule(). */
std::string apply_cuda_schedule(Halide::Pipeline pipeline, MaskedOperator &op, const Problem &problem,
                                const Theta &theta);

}  // namespace distile

#endif
