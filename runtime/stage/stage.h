/** \file
 * A stage that has been checked, as devices run it.
 */
#ifndef DISTILE_STAGE_STAGE_H
#define DISTILE_STAGE_STAGE_H

#include "runtime/base/activation.h"
#include "runtime/mask/mask.h"
#include <distile/stage.h>
#include <vector>

namespace distile {

/** The most 32-pixel words of an output's rows. */
constexpr int64_t most_stage_words = int64_t{64} * 512;

/** The channels of which inputs and outputs of convolutions have multiples. */
constexpr int32_t stage_input_channels = 64, stage_output_channels = 32;

/** A checked step. */
struct CheckedStep {
    const distile_stage_step &given;
    MaskShape output;   ///< The output's, or of scores the mask's.
    bool starts_level;  ///< Reads or overwrites what an earlier step of its level writes or reads.
    /** A device must have run all steps before it starts to plan this one: it makes a mask that one of them used. */
    bool starts_launch;

    Activation activation() const {
        return {given.activation, slope_of(given.slope)};
    }
};

struct Stage {
    std::vector<CheckedStep> steps;
    uint32_t tiles;  ///< The tiles that blocks may use, a bit each; 0: all.
};

}  // namespace distile

#endif
