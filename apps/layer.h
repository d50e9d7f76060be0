/** \file
 * A masked convolution for the demonstration, with random weights, a bordered input, an output, and the result of a
 * plain loop to compare with. Measures medians of interleaved runs.
 */
#ifndef DISTILE_LAYER_H
#define DISTILE_LAYER_H

#include "masks/mask_families.h"
#include "reference/tensors.h"
#include <cstdint>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace distile {

/** Different summation orders of some thousand float32 products differ by a few 1e-7 of the largest sum. */
constexpr double largest_fair_error = 1e-5;

/** Median times of one mask, in microseconds. */
struct Times {
    double masked = 0;  /**< From the byte mask to the result. */
    double kernel = 0;  /**< The part without making the mask and its tile lists. */
    double dense = 0;   /**< Our dense candidate, with every pixel active. */
    double vendor = 0;  /**< The vendor's dense convolution; 0 if there is none. */
    double scatter = 0; /**< Interquartile range of the masked times, relative to their median. */
    int rounds = 0;     /**< Number of rounds behind the medians. */
};

struct Deviation {
    double error = 0;    /**< See Layer::error_of(). */
    int64_t touched = 0; /**< Inactive pixels that did not keep their values. */
};

class Layer {
public:
    /** The operator must preserve the image size. Throws Error if this machine cannot run it. */
    Layer(const Context &context, const distile_polykernel &built, int32_t height, int32_t width);

    const distile_conv2d &conv2d() const {
        return *static_cast<const distile_conv2d *>(polykernel->op);
    }
    /** The name of the PolyKernel that this machine runs. */
    std::string name() const;
    int64_t pixels() const {
        return int64_t{height} * width;
    }
    distile_weights_source weights_source() const;
    /** Floating-point operations per output pixel. */
    double flops_per_pixel() const;
    /** For instance "3x3 convolution, 256 to 256 channels, 40 x 40 pixels". */
    std::string summary() const;

    /** Runs the plain loop once; measuring and checking need only its result. */
    void compute_reference();
    /** The largest difference between an output [height, width, channels] and the plain loop, relative to the plain
     * loop's largest value. Covers the active pixels of a mask, or all pixels if it is null. */
    double error_of(const float *pixels, const ByteMask *mask = nullptr) const;
    /** The dispatcher's choice for a mask, which stays set. */
    distile_choice choose(const ByteMask &bytes);
    /** The tiles of the last mask passed to choose(). */
    distile_tile_list tiles(int32_t tile_h, int32_t tile_w);
    /** Runs the mask once and compares every output pixel, active or not. */
    Deviation check(const ByteMask &bytes);
    /** Measures for about `seconds`. `vendor` runs the vendor's dense convolution and may be empty. */
    Times measure(const ByteMask &bytes, const std::function<void()> &vendor, double seconds);

    Kernel kernel;
    const distile_polykernel *polykernel; /**< The PolyKernel as built, for all kinds of CPU. */
    int32_t height, width;
    distile_tensor input{}, output{};
    std::vector<float> filter; /**< Output channels, input channels, rows, columns. */
    std::vector<float> bias;

private:
    void set(const Mask &mask, const ByteMask &bytes);
    void run(const Mask &mask, const char *variant);

    const Context &context_;
    Weights weights_;
    std::optional<BorderedTensor> input_, output_;
    std::vector<float> reference_;
    Mask mask_, full_mask_;
    std::string dense_variant_;
};

}  // namespace distile

#endif
