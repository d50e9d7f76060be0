/** \file
 * CUDA schedules: their space, and the function that applies one to a masked operator.
 *
 * A block computes `block_pixels` virtual pixels x `block_channels` output channels: it stages `chunk` input
 * channels of one position of the kernel at a time (and the weights that meet them) in shared memory, and keeps
 * its sums in registers, `thread_pixels` x `thread_channels` a thread. With granularity 1 x 1 this is an implicit
 * matrix product whose rows are the active pixels. Where the blocks are too few to fill the chip, the input
 * channels are split over `splits` times as many: their partial sums go through global memory, and a second
 * kernel adds them up.
 */
#ifndef DISTILE_SCHEDULES_CUDA_H
#define DISTILE_SCHEDULES_CUDA_H

#include "Halide.h"
#include "masked_operator.h"
#include "space.h"

namespace distile {

/** The output channels in a block of the canonical CUDA weight layout. */
constexpr int cuda_channel_block = 32;

/** The space of CUDA schedules. */
const Space &cuda_space();

/** The facts of an operator that its constraints ask for. */
Problem cuda_problem(const MaskedOperator &op);

/** Applies a theta that is legal for cuda_problem(op), and adds the lowering passes that it needs to the
 * pipeline. Throws Halide::CompileError if the theta is not legal. Returns the schedule as C++, as
 * apply_cpu_schedule() does. */
std::string apply_cuda_schedule(Halide::Pipeline pipeline, MaskedOperator &op, const Theta &theta);

}  // namespace distile

#endif
