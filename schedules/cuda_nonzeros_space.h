/** \file
 * The space of code for NVIDIA GPUs that multiplies with the nonzero weights alone (kernels/cuda_nonzeros).
 *
 * A block of threads computes `pixels` x `channels`. Its pixels may lie anywhere. Tiles shorten the list of them, and
 * their inactive pixels are computed in vain. `splits` blocks may share an output: each multiplies a part of the
 * reduction.
 */
#ifndef DISTILE_SCHEDULES_CUDA_NONZEROS_SPACE_H
#define DISTILE_SCHEDULES_CUDA_NONZEROS_SPACE_H

#include "runtime/kinds/channel_sections.h"
#include "schedules/space.h"

namespace distile {

/** How a convolution's output channels lie in the blocks of the layout "cuda-nonzeros". */
inline ChannelSections nonzero_sections(const OperatorFacts &op) {
    return {op.groups, op.in_channels, op.out_channels / op.groups, 1};
}

const Space &cuda_nonzeros_space();

}  // namespace distile

#endif
