/** \file
 * How the schedules for GPUs store a masked operator's output.
 */
#ifndef DISTILE_SCHEDULES_GPU_OUTPUT_H
#define DISTILE_SCHEDULES_GPU_OUTPUT_H

#include "schedules/masked_operator.h"
#include <sstream>

namespace distile {

/** Throws Halide::CompileError unless the operator has exactly one stage, as on a GPU. */
void check_gpu_stages(const MaskedOperator &op);

/** Splits the output's channels into `vector` and `lane`. Appends the statements to `source`. */
void vectorize_gpu_output(MaskedOperator &op, int lanes, std::ostream &source);

}  // namespace distile

#endif
