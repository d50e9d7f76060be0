/** \file
 * The space of CPU schedules for depthwise convolutions, and for groups whose weights lie in diagonals (GroupForm).
 * Independent of Halide, so a search can walk it anywhere.
 *
 * Every lane of a vector reads the input channel with its own index, so channels share nothing. A register tile has
 * `pixels` virtual pixels x `channels` channels, and all channels of some pixels come before the next pixels. Addresses
 * are then computed once, and pixels are read in memory order; the few weights stay in L1.
 */
#ifndef DISTILE_SCHEDULES_DEPTHWISE_SPACE_H
#define DISTILE_SCHEDULES_DEPTHWISE_SPACE_H

#include "schedules/space.h"
#include <algorithm>
#include <cstdint>

namespace distile {

/** How much of the kernel is unrolled. */
enum KernelUnroll { UnrollNothing = 0, UnrollRow = 1, UnrollKernel = 2 };

/** For descriptions: what a theta unrolls. */
std::string unrolled_part(const Theta &theta);

/** The number of unrolled kernel taps. */
int64_t unrolled_taps(KernelUnroll unroll, const OperatorFacts &op);

/** The vectors in registers for each vector of channels of a register tile: the sums, the weights of a tap, and with
 * diagonals what serves several sums, the inputs or the weights. A multiply-add of a depthwise convolution takes its
 * input from memory. */
inline int vectors_held(int pixels, int diagonals) {
    return pixels * diagonals + (diagonals > 1 ? std::min(pixels, diagonals) : 0) + 1;
}

const Space &cpu_depthwise_space();

}  // namespace distile

#endif
