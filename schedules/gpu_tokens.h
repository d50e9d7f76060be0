/** \file
 * GPU schedules of operators that read a key or a value: the function that applies one.
 */
#ifndef DISTILE_SCHEDULES_GPU_TOKENS_H
#define DISTILE_SCHEDULES_GPU_TOKENS_H

#include "Halide.h"
#include "schedules/space.h"
#include "schedules/token_operator.h"
#include <string>

namespace distile {

/** Applies a theta that is legal for a problem of a GPU, and adds the lowering passes that it needs to the pipeline.
 * Throws and returns as apply_schedule(). */
std::string apply_gpu_token_schedule(Halide::Pipeline pipeline, TokenOperator &op, const Problem &problem,
                                     const Theta &theta);

}  // namespace distile

#endif
