/** \file
 * The space of CUDA schedules, which OpenCL takes too. Independent of Halide, so a search can walk it anywhere.
 *
 * A block computes `block_pixels` virtual pixels x `block_channels` output channels. It stages `chunk` input channels
 * of one kernel position at a time, with their weights, in shared memory and keeps its sums in registers,
 * `thread_pixels` x `thread_channels` per thread. With granularity 1 x 1 this is an implicit matrix product whose rows
 * are the active pixels. With `halo` it stages `chunk` channels of the whole windows of its tiles (all input that they
 * read) and the weights of all positions, so inputs that neighbouring pixels share are loaded once, with fewer
 * barriers. A block computes channels
 * of one group. Staged values are float32 for every input type, so they are converted once. With phases, a block
 * computes one phase. If there are too few blocks to fill the chip, `splits` times as many blocks split the input
 * channels: their partial sums go through global memory, and a second kernel adds them.
 */
#ifndef DISTILE_SCHEDULES_CUDA_SPACE_H
#define DISTILE_SCHEDULES_CUDA_SPACE_H

#include "schedules/space.h"
#include <cstdint>

namespace distile {

/** The space of CUDA schedules, except for operators that run direct. */
const Space &cuda_space();

/** The facts that its constraints need. */
Problem cuda_problem(const OperatorFacts &op);
/** The facts for OpenCL: work-groups of up to 256 work-items and 32 KB of local memory, which phones' GPUs have. */
Problem opencl_problem(const OperatorFacts &op);

/** The output channels that blocks compute, groups padded to whole blocks of the weights. */
int padded_channels(const OperatorFacts &op);

/** A block's threads along the channels, along the pixels, and in total. */
int channel_threads(const Theta &theta);
int pixel_threads(const Theta &theta);
int block_threads(const Theta &theta);

/** The extents of the input that a tile reads in one phase. */
int window_width(const Theta &theta, const Problem &problem);
int window_height(const Theta &theta, const Problem &problem);

/** Input pixels that a block stages at once. */
int staged_pixels(const Theta &theta, const Problem &problem);

/** Input elements per load: 16 bytes if the threads can share them equally, else as many as make 16 bytes of float32;
 * or one if the channels are not whole vectors. */
int input_lanes(const Theta &theta, const Problem &problem);

/** Tiles that a block looks up: its own, those that equal shares of its threads would add (the look-ups in a thread's
 * last turn are not guarded), and padding to whole vectors, which aligns what follows in shared memory. */
int looked_up_tiles(const Theta &theta, const Problem &problem);

/** Bytes of shared memory per block. */
int64_t shared_bytes(const Theta &theta, const Problem &problem);

/** Registers for a thread's sums and for the inputs and weights of one channel. Addresses and loads in flight come on
 * top. */
int sum_registers(const Theta &theta);

/** Registers for loads in flight while a thread computes. */
int prefetch_registers(const Theta &theta, const Problem &problem);

}  // namespace distile

#endif
