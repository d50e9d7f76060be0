/** \file
 * The space of CUDA schedules that read the input directly, without staging it: for depthwise convolutions, because no
 * two of their channels share inputs, and for groups that do not fill blocks of the weights. Knows no Halide, so that a
 * search can walk it anywhere.
 *
 * A thread computes `thread_pixels` virtual pixels x `thread_channels` channels, and a block `block_pixels` x
 * `block_channels`. Neighbouring threads have neighbouring channels, so that a warp loads whole lines; what
 * neighbouring pixels share comes from the nearest cache.
 */
#ifndef DISTILE_SCHEDULES_CUDA_DIRECT_SPACE_H
#define DISTILE_SCHEDULES_CUDA_DIRECT_SPACE_H

#include "space.h"

namespace distile {

/** Whether an operator has this space rather than cuda_space(). */
bool runs_direct(const OperatorFacts &op);

const Space &cuda_direct_space();

}  // namespace distile

#endif
