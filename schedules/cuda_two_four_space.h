/** \file
 * The schedules of weights of the pattern 2:4 on NVIDIA GPUs (kernels/cuda_two_four).
 *
 * A block of threads computes `pixels` x `channels`. `splits` blocks may share an output: each multiplies a part of the
 * reduction.
 */
#ifndef DISTILE_SCHEDULES_CUDA_TWO_FOUR_SPACE_H
#define DISTILE_SCHEDULES_CUDA_TWO_FOUR_SPACE_H

#include "schedules/space.h"

namespace distile {

/** The space for the tensor cores of compute capability 9.0, or of 8.0 and later. */
const Space &cuda_two_four_space(TensorCores cores);

}  // namespace distile

#endif
