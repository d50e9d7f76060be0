/** \file
 * The space of CPU schedules of depthwise convolutions. Knows no Halide, so that a search can walk it anywhere.
 *
 * Every output channel reads one input channel, so that nothing is shared between channels: a register tile runs over
 * `pixels` virtual pixels x `channels` channels, and all channels of some pixels come before the next pixels. Their
 * addresses are then worked out once, and pixels are read as they lie in memory; the weights are few and stay in the
 * nearest cache.
 */
#ifndef DISTILE_SCHEDULES_DEPTHWISE_SPACE_H
#define DISTILE_SCHEDULES_DEPTHWISE_SPACE_H

#include "space.h"
#include <cstdint>

namespace distile {

/** How much of the kernel is unrolled. */
enum KernelUnroll { UnrollNothing = 0, UnrollRow = 1, UnrollKernel = 2 };

/** Taps of the kernel that are unrolled. */
int64_t unrolled_taps(KernelUnroll unroll, const OperatorFacts &op);

const Space &cpu_depthwise_space();

}  // namespace distile

#endif
