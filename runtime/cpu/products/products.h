/** \file
 * Products of listed pixels and packed weights, for several instruction sets. To add one, add a file, and a row in the
 * file of its architecture in ../architectures/.
 *
 * Weights are panels of 16 output channels, filled up with zeros. A panel has 16 numbers for each input channel of a
 * tap, or of a depthwise convolution for each tap, and where weights lie by diagonals for each of these. Weights of
 * int8 end with a factor for each output channel.
 */
#ifndef DISTILE_CPU_PRODUCTS_H
#define DISTILE_CPU_PRODUCTS_H

#include <cstdint>

namespace distile {

/** How the numbers of weights are stored. */
enum ProductWeights : int32_t { float32_weights, bfloat16_weights, int8_weights, num_product_weights };

constexpr int64_t panel_channels = 16;
constexpr int64_t most_set_panels = 4;     ///< Panels that are multiplied together: a set.
constexpr int64_t most_group_pixels = 12;  ///< Pixels that are multiplied together: a group.
constexpr int64_t most_depthwise_pixels = 8;

struct GroupResults;

/** The products of a group and a set, over a part of the reduction: some pieces, each of neighbouring channels. */
struct GroupProduct {
    const float *const *inputs;  ///< [piece][most_group_pixels]: where a pixel's channels begin.
    const int32_t *lengths;      ///< The channels of each piece.
    int32_t num_pieces;
    int32_t pixels, panels;
    const void *weights;     ///< The first panel's, at the first piece.
    int64_t panel_distance;  ///< From a panel to the next, in numbers.
    bool adds;               ///< To the sums of a part before.
    float *sums;             ///< [pixel][panels * 16]
    /** Null, or what becomes of the sums after the last part, instead of being stored: of whole panels, with activation
     * at each pixel, which keeps them between two numbers. */
    const GroupResults *results;
    const char *fetched;  ///< Memory that is brought into the second-level cache meanwhile.
    int64_t fetched_bytes;
};

/** What becomes of a group's sums. Arrays begin at the product's first channel. */
struct GroupResults {
    const float *sums;
    uint32_t stored;  ///< A bit for each pixel that has a result.
    int32_t panels, channels;
    const float *factors, *bias;    ///< Null: 1 and 0.
    const float *const *residuals;  ///< One for each pixel, or null.
    float *const *outputs;          ///< One for each pixel.
    uint32_t without_activation;    ///< A bit for each pixel.
    float slope;
    float least, most;  ///< Between these the activation keeps a sum, where products make results.
};

/** The products of some pixels in a depthwise convolution, over some rows and columns of its kernel, or those of a
 * diagonal of narrow groups. Pixel `p` reads, for column `c` of row `r`, the channels at
 * inputs[r * row_inputs + p * pixel_inputs + c * column_inputs]: pixels side by side share inputs where both are 1. */
struct DepthwiseProduct {
    const float *const *inputs;
    int64_t row_inputs, pixel_inputs, column_inputs;
    int32_t rows, columns;
    int32_t pixels, channels;            ///< Channels of any number.
    const void *weights;                 ///< The first panel's, at the first tap.
    int64_t tap_distance, row_distance;  ///< From the weights of a tap or a row to the next ones, in numbers.
    int64_t panel_distance;              ///< From a panel to the next, in numbers.
    bool adds;                           ///< To the sums of a part before.
    float *sums;                         ///< [pixel][whole panels]
    const GroupResults *results;         ///< As in GroupProduct.
};

/** A row of scores, which becomes a softmax block of keys by block of keys. Zero-initialise before the first. */
struct SoftmaxRow {
    float *const *stretches;     ///< The block's scores. Each stretch has room for whole panels of keys.
    int32_t stretch_keys, keys;  ///< A stretch has `stretch_keys`, the last one fewer.
    float scale;                 ///< Above 0.
    float most, sum;             ///< The largest score, and the sum of exp(scale * (score - most)), of all blocks.
    float left;                  ///< The factor of what blocks before have made.
    bool has_scores;             ///< Whether there were blocks before.
};

struct PixelProducts {
    const char *features;         ///< What the CPU must have, as in plans.
    int32_t set_panels;           ///< The panels of a set.
    const int32_t *group_pixels;  ///< The pixels of a group, by the panels of its set.
    void (*multiply[num_product_weights])(const GroupProduct &product);
    int32_t depthwise_pixels;  ///< The pixels that a depthwise product has at most.
    void (*multiply_depthwise[num_product_weights])(const DepthwiseProduct &product);
    /** Adds what a diagonal of groups of 2, 4 or 8 channels made at their input channels to the sums of their output
     * channels: those as far behind, cyclically. `count` is of whole panels. */
    void (*add_diagonal)(const float *made, int64_t count, int32_t channels, int32_t diagonal, float *sums);
    /** `activation` has been checked. */
    void (*finish)(const GroupResults &results, int32_t activation);
    /** Makes exp(scale * (score - most)) of a block's scores. NaN and infinite scores make NaN. */
    void (*soften)(SoftmaxRow &row);
};

// The build has those of its architecture.
extern const PixelProducts portable_products, avx2_products, avx512_products;

}  // namespace distile

#endif
