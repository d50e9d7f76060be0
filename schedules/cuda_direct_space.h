/** \file
 * The space of CUDA schedules whose threads read the input directly, without staging: for depthwise convolutions, whose
 * channels share no inputs, and for groups that do not fill blocks of the weights. Independent of Halide, so a search
 * can walk it anywhere.
 *
 * A thread computes `thread_pixels` virtual pixels x `thread_channels` channels, and a block `block_pixels` x
 * `block_channels`. Neighbouring threads have neighbouring channels, so a warp loads whole cache lines; inputs that
 * neighbouring pixels share come from L1.
 */
#ifndef DISTILE_SCHEDULES_CUDA_DIRECT_SPACE_H
#define DISTILE_SCHEDULES_CUDA_DIRECT_SPACE_H

#include "schedules/space.h"

namespace distile {

/** Whether an operator uses this space instead of cuda_space(). */
bool runs_direct(const OperatorFacts &op);

const Space &cuda_direct_space();

}  // namespace distile

#endif
