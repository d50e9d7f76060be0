/** \file
 * Weights as a stage's kernels read them: groups of 32 output channels, and in each, step by step of the reduction, 64
 * numbers for each output channel. Steps go through the channels of a tap, and then to the next tap; zeros fill them up
 * to a multiple of 4. In a group, output channels are in the order in which a thread has neighbours, and the pieces of
 * 16 bytes of the lines of 128 bytes are swizzled, both as the instructions for products have it.
 */
#ifndef DISTILE_STAGE_STAGE_WEIGHTS_H
#define DISTILE_STAGE_STAGE_WEIGHTS_H

#include <cstdint>

namespace distile {

struct StageWeights {
    int32_t out_channels, in_channels, kernel_h, kernel_w;

    bool is_possible() const;
    /** The steps of the reduction, without and with zeros. */
    int64_t steps() const;
    int64_t padded_steps() const;
    int64_t bytes() const;
};

}  // namespace distile

#endif
