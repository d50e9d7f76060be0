/** \file
 * CUDA schedules without staging: the function that applies one to a masked operator.
 */
#ifndef DISTILE_SCHEDULES_CUDA_DIRECT_H
#define DISTILE_SCHEDULES_CUDA_DIRECT_H

#include "Halide.h"
#include "cuda_direct_space.h"
#include "masked_operator.h"

namespace distile {

/** Does for an operator that runs direct what apply_cuda_schedule() does for others. */
std::string apply_cuda_direct_schedule(Halide::Pipeline pipeline, MaskedOperator &op, const Theta &theta);

}  // namespace distile

#endif
