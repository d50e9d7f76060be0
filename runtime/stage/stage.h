/** \file
 * A stage that has been checked, as devices run it.
 */
#ifndef DISTILE_STAGE_STAGE_H
#define DISTILE_STAGE_STAGE_H

#include "runtime/base/activation.h"
#include "runtime/mask/mask.h"
#include "runtime/stage/stage_target.h"
#include <distile/stage.h>
#include <vector>

namespace distile {

/** The rows of a mask in words of 32 pixels. */
inline int64_t stage_words(const MaskShape &shape) {
    return int64_t{shape.batch} * shape.height * ((shape.width + 31) / 32);
}

/** A checked step. */
struct CheckedStep {
    distile_stage_step given;  ///< Without a mask if the device computes all pixels.
    MaskShape output;          ///< The output's, or of scores the mask's.
    distile_dtype weights_dtype;
    bool starts_level;  ///< Reads or overwrites what an earlier step of its level writes or reads.
    /** A device must have run all steps before it starts to plan this one: it makes a mask that one of them used. */
    bool starts_launch;

    /** The shape of a convolution's weights. */
    StageFilter filter() const {
        return {given.output->channels, given.input->channels, given.window.kernel_h, given.window.kernel_w,
                given.groups == 0 ? 1 : given.groups};
    }
    Activation activation() const {
        return {given.activation, slope_of(given.slope)};
    }
};

struct Stage {
    std::vector<CheckedStep> steps;
    uint32_t tiles;  ///< The tiles that blocks may use, a bit each; 0: all.
};

struct StageTrace {
    std::vector<distile_stage_item> items;
};

}  // namespace distile

#endif
