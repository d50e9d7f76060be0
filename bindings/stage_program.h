/** \file
 * A described stage (docs/stage_files.md) as operators of frameworks carry it: numbers, which
 * python/distile/stage_description.py writes. It is checked here, because exported programs keep it.
 */
#ifndef DISTILE_BINDINGS_STAGE_PROGRAM_H
#define DISTILE_BINDINGS_STAGE_PROGRAM_H

#include "bindings/activation.h"
#include <array>
#include <distile/stage.h>
#include <string>
#include <vector>

namespace distile::bindings {

/** [batch, channels, height, width]; tokens are one row. */
using ImageSizes = std::array<int64_t, 4>;
/** [batch, height, width] */
using MaskSizes = std::array<int64_t, 3>;

/** An image of a stage: one that is given, or a step's result. */
struct StageImage {
    ImageSizes sizes{};
    int32_t maker = -1;          /**< The step; -1 if it is given. */
    int32_t last_use = -1;       /**< The last step that reads it; -1: none. */
    bool is_output = false;      /**< Whether the stage returns it. */
    bool needs_zeros = true;     /**< Whether somebody reads pixels that its step does not write. */
    int32_t border = 0;          /**< The pixels outside that windows read, on the side where they read the most. */
    bool is_negative = true;     /**< Whether a pixel may be less than 0. */
    bool reads_zeros = false;    /**< Whether steps read zeros outside. */
    bool leaves_outside = false; /**< Whether max pools read outside what does not count, in a border of their own. */
    bool is_totals = false;      /**< Whether it has the float32 numbers of tokens that halts add to. */

    bool is_empty() const {
        return sizes[0] == 0 || sizes[1] == 0 || sizes[2] == 0 || sizes[3] == 0;
    }
};

enum class StageKind : int32_t {
    conv2d = DISTILE_STEP_CONV2D,
    scores = DISTILE_STEP_SCORES,
    // distile_run_stage has no such steps: they run between others.
    algebra = 2, /**< A mask from others, as mask_algebra.h has them. */
    layer = 3,   /**< An image from others, as layers.h and upsample.h have them. */
    norm = 4,
    attention = 5, /**< Its input has the channels of queries, keys and values side by side. */
    halt = 6       /**< Makes totals, maybe sums, and the mask of the tokens that go on. */
};

enum class StageLayer : int32_t { max_pool, average_pool, upsample, sum };

enum class MaskAlgebra : int32_t { unite, intersect, subtract, invert, dilate, pool };

/** A step. Images and masks are numbers: those that are given come first, then those of the steps in their order. -1
 * stands for none. */
struct StageStep {
    StageKind kind;
    MaskAlgebra algebra; /**< How a mask follows from others. Its radius or factor is the window's padding. */
    StageLayer layer;    /**< The factors of an upsampling are the window's padding. */
    int32_t input;
    int32_t residual;    /**< A sum has it, too. */
    int32_t base;        /**< What the result is at pixels that the step does not compute; none: 0. */
    int32_t mask, later; /**< A halt's mask is that of the tokens that may go on. */
    distile_window window;
    int32_t pad_bottom, pad_right;
    distile_window reader; /**< Its kernel is 0 without a reader. */
    int32_t weights, bias; /**< A halt has limits in the place of the bias. */
    int32_t groups;        /**< A convolution has them; 0 for other steps. */
    distile_norm norm;
    float epsilon; /**< A norm has it; less than 0: that of the input's type. */
    int32_t heads; /**< Attention has them. */
    float scale;   /**< Attention has it; 0: 1 / sqrt(channels of a head). */
    bool all_keys; /**< Whether attention is to all pixels, not to those of the mask. */
    Activation activation;
    std::string activation_name;
    float score_bias, threshold;
    int32_t result;  /**< The image or the mask that it makes. */
    bool takes_base; /**< Whether the result may take the memory of its base: nobody else reads that later. */
    bool is_early;   /**< Whether no step before it waits for its mask, and other pixels of its result do not count. */
    /** Halts have what they add to, -1 for none, and the images that they make of it: they may take its memory. */
    struct Added {
        int32_t to = -1, made = -1;
        bool takes = false;
    } totals, sums;

    bool has_reader() const {
        return reader.kernel_h > 0;
    }
    bool makes_image() const {
        return kind != StageKind::scores && kind != StageKind::algebra && kind != StageKind::halt;
    }
};

/** How many of each are given. */
struct StageCounts {
    size_t images, masks, parameters;
};

class StageProgram {
public:
    static constexpr size_t integers = 27, reals = 2;

    /** The integers of a step are its kind, input (or the algebra of masks), residual, base, mask, later (or the
     * layer, the norm, or 1 for all keys), kernel, stride, dilation, padding (top, bottom, left, right), the reader's
     * kernel, stride, dilation and padding (top, left), weights, bias and the groups of a convolution (or the heads of
     * attention); its reals are the bias and the threshold of scores, or the epsilon of a norm or the scale of
     * attention, less than 0 for the usual one, and 0. A halt has sums as residual, totals as base, limits as bias, and
     * the reals of scores. It makes the images of totals and then of sums, if it has some. Activations are names with
     * commas between. `outputs` are images, or masks as -1 - mask. Fails for numbers that name what is not there. */
    StageProgram(const std::vector<int64_t> &steps, const std::vector<double> &numbers, const std::string &activations,
                 const std::vector<int64_t> &outputs, const StageCounts &given);

    /** Finds the sizes of all images and of the masks that steps make. `channels`: how many a parameter makes, its
     * first dimension. Fails for windows larger than their images, and for masks that differ. */
    void find_sizes(const std::vector<ImageSizes> &given, const std::vector<MaskSizes> &masks,
                    const std::vector<int64_t> &channels);

    const std::vector<StageStep> &steps() const {
        return steps_;
    }
    const std::vector<StageImage> &images() const {
        return images_;
    }
    const std::vector<int64_t> &outputs() const {
        return outputs_;
    }
    size_t given_masks() const {
        return given_.masks;
    }
    /** Whether a step may write other pixels, too, that nobody reads: where it need not wait for its mask. Those of
     * `tokens` are norms and linear layers. */
    bool spreads(const StageStep &step, bool tokens) const;
    /** Whether the next step alone reads what a convolution makes, where it makes it, and needs no copy first of what a
     * step makes, before which all steps must have run. */
    bool is_transient(const StageStep &step) const;
    /** Whether the numbers outside an image do not count for a max pool: its windows stay inside, zeros there are not
     * more than what is inside, or minus infinity can be there, because no other step reads outside. */
    bool can_pool(const StageStep &step) const;
    /** The pixels of what a step makes. */
    MaskSizes pixels(const StageStep &step) const;
    const MaskSizes &mask_sizes(int64_t mask) const {
        return mask_sizes_[static_cast<size_t>(mask)];
    }

private:
    void read_step(const int64_t *integers, const double *reals, const std::string &activation);
    void find_mask(const StageStep &step);
    void read_layer(const StageStep &step) const;
    void find_image(const StageStep &step, size_t number, const std::vector<int64_t> &channels);
    /** The sizes that a window makes of those of an image. Fails if there is no pixel. */
    ImageSizes outputs(const StageStep &step, size_t number) const;
    /** How far windows read outside of the input, on the side where they read the most. */
    int32_t reach(const StageStep &step, const ImageSizes &made) const;
    void find_layer(const StageStep &step, size_t number);
    void find_attention(const StageStep &step, size_t number);
    void read_halt(StageStep &step);
    void find_halt(const StageStep &step, size_t number);
    int32_t add_image(size_t maker);
    /** Whether nobody reads pixels of a result that its step does not compute, and it adds nothing. */
    bool is_free(const StageStep &step) const;
    void check_totals() const;
    void find_early();
    /** Whether a mask has no pixels but those of another. */
    bool is_within(int32_t mask, int32_t other) const;
    void find_outside();
    bool makes_negative(const StageStep &step) const;
    bool has_own_memory(int32_t image) const;
    void note_use(int32_t image, int32_t step);
    void find_uses();
    /** Whether a step reads of an image only what the step that makes it has written. */
    bool reads_written(const StageStep &maker, const StageStep &reader) const;

    StageCounts given_;
    std::vector<StageStep> steps_;
    std::vector<StageImage> images_;
    std::vector<MaskSizes> mask_sizes_; /**< Sizes of masks that are given, and of those that steps make. */
    std::vector<int64_t> outputs_;
};

}  // namespace distile::bindings

#endif
