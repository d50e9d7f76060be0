/** \file
 * The space of CPU schedules. Independent of Halide, so a search can walk it anywhere.
 */
#ifndef DISTILE_SCHEDULES_CPU_SPACE_H
#define DISTILE_SCHEDULES_CPU_SPACE_H

#include "schedules/space.h"

namespace distile {

inline GroupBlocks group_blocks(const OperatorFacts &op) {
    return group_blocks(op, GroupReaders::Vectors);
}

inline bool pads_groups(const OperatorFacts &op) {
    return pads_groups(op, GroupReaders::Vectors);
}

/** The sums that each lane of an output has: those of the diagonals of a group, which the schedules of depthwise
 * convolutions compute; one of any other operator. */
inline int num_diagonals(const OperatorFacts &op) {
    return !op.depthwise && group_blocks(op).form() == GroupForm::Diagonals ? op.in_channels : 1;
}

/** Whether the schedules of depthwise convolutions are for it: each lane reads the input channel with its own index. */
inline bool reads_own_channels(const OperatorFacts &op) {
    return op.depthwise || (op.groups > 1 && group_blocks(op).form() == GroupForm::Diagonals);
}

/** How many register tiles, each of `channels` channels, cover the output channels. */
inline int num_channel_tiles(const OperatorFacts &op, int channels) {
    return pads_groups(op) ? op.groups * (round_up(op.out_channels / op.groups, channels) / channels)
                           : round_up(op.out_channels, op.channel_block) / channels;
}

/** The loop order of the accumulator's reduction, outermost first. */
enum ReductionOrder {
    KyKxCi = 0, /**< Only `unroll` input channels unrolled. */
    CiKyKx = 1, /**< The kernel unrolled inside the input channels. */
    KyCiKx = 2  /**< One kernel row unrolled inside the input channels. */
};

/** With more threads than a few, the pixels are cut into this many shares a thread: cores differ in speed, and a share
 * that ends late would hold up the call. */
constexpr int few_threads = 2, shares_of_many = 4;

/** The space of CPU schedules. */
const Space &cpu_space();

/** The facts that its constraints need, for a CPU with this many vector lanes and registers. */
Problem cpu_problem(const OperatorFacts &op, int vector_lanes, int vector_registers);

}  // namespace distile

#endif
