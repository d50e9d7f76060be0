/** \file
 * Products of listed pixels and packed weights, for several instruction sets. To add one, add a file, and a row in the
 * file of its architecture in ../architectures/.
 *
 * Weights are panels of 16 output channels, filled up with zeros. A panel has 16 numbers for each input channel of a
 * tap, or of a depthwise convolution for each tap. Weights of int8 end with a factor for each output channel.
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
constexpr int64_t most_set_channels = most_set_panels * panel_channels;

struct GroupResults;

/** The products of a group and a set, over a part of the reduction: some pieces, each of neighbouring channels. In
 * a depthwise convolution a piece is a tap, where the set's channels begin. */
struct GroupProduct {
    const float *const *inputs;  ///< [piece][most_group_pixels]: where a pixel's channels begin.
    int64_t input_offset;        ///< In depthwise convolutions: from there to the set's channels.
    const int32_t *lengths;      ///< The channels of each piece; unused in depthwise convolutions.
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

/** What becomes of a group's sums. Arrays begin at the set's first channel. */
struct GroupResults {
    const float *sums;
    int32_t pixels, panels, channels;
    const float *factors, *bias;    ///< Null: 1 and 0.
    const float *const *residuals;  ///< One for each pixel, or null.
    float *const *outputs;          ///< One for each pixel.
    uint32_t without_activation;    ///< A bit for each pixel.
    float slope;
    float least, most;  ///< Between these the activation keeps a sum, where products make results.
};

struct PixelProducts {
    const char *features;         ///< What the CPU must have, as in plans.
    int32_t set_panels;           ///< The panels of a set.
    const int32_t *group_pixels;  ///< The pixels of a group, by the panels of its set.
    void (*multiply[num_product_weights])(const GroupProduct &product);
    /** Each output channel multiplies its own input channel. */
    void (*multiply_depthwise[num_product_weights])(const GroupProduct &product);
    /** `activation` has been checked. */
    void (*finish)(const GroupResults &results, int32_t activation);
};

// The build has those of its architecture.
extern const PixelProducts portable_products, avx2_products, avx512_products;

}  // namespace distile

#endif
