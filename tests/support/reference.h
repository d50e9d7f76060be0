/** \file
 * What a masked operator computes, as plain loops: the tests compare every kernel with it.
 */
#ifndef DISTILE_TESTS_REFERENCE_H
#define DISTILE_TESTS_REFERENCE_H

#include "facts/activations.h"
#include "reference/conv2d_reference.h"
#include "reference/error_bounds.h"
#include "reference/reference_output.h"
#include <cstdint>
#include <vector>

namespace distile {

/** The slope that tests of operators give. */
constexpr float tested_slope = -.3f;

/** One call of distile_run, with the weights as they were before they were packed. */
struct ReferenceArgs {
    distile_operator_kind kind = DISTILE_MASKED_CONV2D;
    distile_conv2d conv{};
    distile_dtype dtype = DISTILE_FLOAT32;         /**< What the operator stores. */
    distile_dtype weights_dtype = DISTILE_FLOAT32; /**< Packed weights are rounded to it. */
    distile_tensor input{};
    std::vector<float> filter; /**< [kernel row][kernel column][input channel][output channel] */
    std::vector<float> bias;   /**< [output channel], or empty. */
    float slope = DISTILE_DEFAULT_SLOPE;
    const distile_tensor *residual = nullptr;
    std::vector<uint8_t> mask; /**< [image][row][column] of the output. */
    distile_inactive inactive = DISTILE_KEEP;
    distile_store store = DISTILE_STORE_EXACT;
    int32_t tile_h = 1, tile_w = 1; /**< The granularity of the variant that runs. */
    bool dense = false;             /**< The variant computes every tile, active or not. */
};

/** Sets what is the operator's: its kind, convolution and type. */
void set_operator(ReferenceArgs &args, const distile_polykernel &polykernel);

/** The expected output of any kind of operator. */
ReferenceOutput reference_masked_conv2d(const ReferenceArgs &args);

/** The number of tiles with at least one active pixel, by looking at every pixel of every tile. */
int64_t reference_active_tiles(const std::vector<uint8_t> &mask, int32_t batch, int32_t height, int32_t width,
                               int32_t tile_h, int32_t tile_w);

}  // namespace distile

#endif
