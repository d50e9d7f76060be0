/** \file
 * The space of code for NVIDIA GPUs that reads a bitmap of pruned weights of 16 bits (kernels/cuda_bitmap).
 *
 * A block of threads computes `pixels` x `channels`. Its warps have 16 of the channels each; where these are fewer,
 * they share the reduction. `splits` blocks may share an output: each multiplies a part of the reduction. Weights of
 * `ahead` units of 128 columns are fetched to the L2 cache early.
 */
#ifndef DISTILE_SCHEDULES_CUDA_BITMAP_SPACE_H
#define DISTILE_SCHEDULES_CUDA_BITMAP_SPACE_H

#include "schedules/space.h"

namespace distile {

const Space &cuda_bitmap_space();

}  // namespace distile

#endif
