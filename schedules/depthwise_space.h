/** \file
 * The space of CPU schedules of depthwise convolutions. Knows no Halide, so that a search can walk it anywhere.
 *
 * Every output channel reads one input channel, so that channels share nothing. A register tile has `pixels` virtual
 * pixels x `channels` channels, and a task computes all channels of its pixels before the next pixels: it computes
 * addresses once, and reads pixels in the order of memory. The weights are few and stay in the nearest cache.
 */
#ifndef DISTILE_SCHEDULES_DEPTHWISE_SPACE_H
#define DISTILE_SCHEDULES_DEPTHWISE_SPACE_H

#include "space.h"
#include <cstdint>

namespace distile {

/** How much of the kernel is unrolled. */
enum KernelUnroll { UnrollNothing = 0, UnrollRow = 1, UnrollKernel = 2 };

/** For descriptions: what a theta unrolls. */
std::string unrolled_part(const Theta &theta);

/** Taps of the kernel that are unrolled. */
int64_t unrolled_taps(KernelUnroll unroll, const OperatorFacts &op);

const Space &cpu_depthwise_space();

}  // namespace distile

#endif
