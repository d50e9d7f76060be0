/** \file
 * The space of CUDA schedules. Knows no Halide, so that a search can walk it anywhere.
 *
 * A block computes `block_pixels` virtual pixels x `block_channels` output channels: it stages `chunk` input
 * channels of one position of the kernel at a time (and the weights that meet them) in shared memory, and keeps
 * its sums in registers, `thread_pixels` x `thread_channels` a thread. With granularity 1 x 1 this is an implicit
 * matrix product whose rows are the active pixels. With `halo` it stages `chunk` channels of the whole windows of its
 * tiles, that is of all the input that they read, and the weights of all positions: what neighbouring pixels share is
 * loaded once, and there are fewer barriers. What is staged is float32, whatever the type of the input, so that it is
 * converted once. A block computes one phase of an operator that has phases. Where the blocks are too few to fill the
 * chip, the input channels are split over `splits` times as many: their partial sums go through global memory, and a
 * second kernel adds them up.
 */
#ifndef DISTILE_SCHEDULES_CUDA_SPACE_H
#define DISTILE_SCHEDULES_CUDA_SPACE_H

#include "space.h"
#include <cstdint>

namespace distile {

/** The space of CUDA schedules, but for operators that run direct. */
const Space &cuda_space();

/** What its constraints depend on. */
Problem cuda_problem(const OperatorFacts &op);

/** Threads of a block along the channels, along the pixels, and in all. */
int channel_threads(const Theta &theta);
int pixel_threads(const Theta &theta);
int block_threads(const Theta &theta);

/** The extents of the input that a tile reads, in one phase. */
int window_width(const Theta &theta, const Problem &problem);
int window_height(const Theta &theta, const Problem &problem);

/** Pixels of the input, for all of a block, that are staged at once. */
int staged_pixels(const Theta &theta, const Problem &problem);

/** Elements of the input that are loaded at once: 16 bytes of them where the threads can share
 * them equally, else as many as become 16 bytes of float32; or one where the channels are no whole vectors. */
int input_lanes(const Theta &theta, const Problem &problem);

/** Tiles that a block looks up: its own, those that its threads would stage next if all had equal shares (the look-ups
 * of a thread's last turn are not guarded), and up to whole vectors, so that what follows in shared memory is aligned.
 */
int looked_up_tiles(const Theta &theta, const Problem &problem);

/** Bytes of shared memory that a block takes. */
int64_t shared_bytes(const Theta &theta, const Problem &problem);

/** What a thread holds at once: its sums, and the inputs and weights of one channel. Addresses and what is
 * on its way from memory come on top. */
int sum_registers(const Theta &theta);

/** What a thread has on its way from memory while it computes. */
int prefetch_registers(const Theta &theta, const Problem &problem);

}  // namespace distile

#endif
