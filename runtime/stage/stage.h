/** \file
 * A stage that has been checked, as devices run it.
 */
#ifndef DISTILE_STAGE_STAGE_H
#define DISTILE_STAGE_STAGE_H

#include "runtime/base/activation.h"
#include "runtime/mask/mask.h"
#include "runtime/stage/stage_target.h"
#include <distile/stage.h>
#include <optional>
#include <vector>

namespace distile {

/** The rows of a mask in words of 32 pixels. */
inline int64_t stage_words(const MaskShape &shape) {
    return int64_t{shape.batch} * shape.height * ((shape.width + 31) / 32);
}

/** Whether a step makes a mask. */
inline bool makes_mask(const distile_stage_step &step) {
    return step.kind == DISTILE_STEP_SCORES || step.kind == DISTILE_STEP_HALT;
}

/** A checked step. */
struct CheckedStep {
    distile_stage_step given;  ///< Without a mask if the device computes all pixels.
    MaskShape output;          ///< The output's, or that of the mask that it makes.
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

inline bool is_point(const distile_window &window) {
    return window.kernel_h == 1 && window.kernel_w == 1 && window.stride_h == 1 && window.stride_w == 1 &&
           window.pad_top == 0 && window.pad_left == 0;
}

inline bool is_same_window(const distile_window &a, const distile_window &b) {
    return a.kernel_h == b.kernel_h && a.kernel_w == b.kernel_w && a.stride_h == b.stride_h &&
           a.stride_w == b.stride_w && a.dilation_h == b.dilation_h && a.dilation_w == b.dilation_w &&
           a.pad_top == b.pad_top && a.pad_left == b.pad_left;
}

struct Stage {
    std::vector<CheckedStep> steps;
    uint32_t tiles = 0;  ///< The tiles that blocks may use, a bit each; 0: all.
    int32_t teams = 0;   ///< As in distile_stage_args.
};

struct StageTrace {
    std::vector<distile_stage_item> items;
    std::optional<uint32_t> began;  ///< When the stage began, by the device's clock.
};

}  // namespace distile

#endif
