/** \file
 * The space of CUDA schedules. Knows no Halide, so that a search can walk it anywhere.
 *
 * A block computes `block_pixels` virtual pixels x `block_channels` output channels: it stages `chunk` input
 * channels of one position of the kernel at a time (and the weights that meet them) in shared memory, and keeps
 * its sums in registers, `thread_pixels` x `thread_channels` a thread. With granularity 1 x 1 this is an implicit
 * matrix product whose rows are the active pixels. Where the blocks are too few to fill the chip, the input
 * channels are split over `splits` times as many: their partial sums go through global memory, and a second
 * kernel adds them up.
 */
#ifndef DISTILE_SCHEDULES_CUDA_SPACE_H
#define DISTILE_SCHEDULES_CUDA_SPACE_H

#include "space.h"

namespace distile {

/** The output channels in a block of the canonical CUDA weight layout. */
constexpr int cuda_channel_block = 32;

/** The space of CUDA schedules. */
const Space &cuda_space();

/** What its constraints ask for. */
Problem cuda_problem(const OperatorFacts &op);

/** Threads of a block along the channels, along the pixels, and in all. */
int channel_threads(const Theta &theta);
int pixel_threads(const Theta &theta);
int block_threads(const Theta &theta);

/** Bytes of shared memory that a block takes. */
int shared_bytes(const Theta &theta, const Problem &problem);

/** What a thread holds at once: its sums, and the inputs and weights of one channel. Addresses and what is
 * on its way from memory come on top. */
int sum_registers(const Theta &theta);

}  // namespace distile

#endif
