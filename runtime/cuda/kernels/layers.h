/** \file
 * Shared by the host and the kernels of layers.
 */
#ifndef DISTILE_CUDA_KERNELS_LAYERS_H
#define DISTILE_CUDA_KERNELS_LAYERS_H

#include "runtime/base/activation.h"
#include "runtime/cuda/kernels/packing.h"
#include <distile/layers.h>

namespace distile {

constexpr uint32_t layer_bytes = 16;  ///< The bytes of a vector, if pixels are read and written in vectors.

/** A window along one axis, and the input's extent. */
struct PooledAxis {
    int32_t kernel, stride, dilation, pad, extent;
};

/** The pooling of the windows of the listed pixels. */
struct PooledPixels {
    PixelView from, to;  ///< In elements.
    PixelList list;
    PooledAxis rows, columns;
    uint32_t vectors;  ///< Per pixel.
    uint32_t team;     ///< Lanes per pixel: a power of two up to 32.
    int32_t largest, count_padding;
};

/** The combination of the listed pixels of two tensors. */
struct CombinedPixels {
    PixelView from, other, to;  ///< In elements.
    PixelList list;
    uint32_t vectors;  ///< Per pixel.
    uint32_t team;     ///< Lanes per pixel: a power of two up to 32.
    distile_combination how;
    Activation other_activation, activation;
};

constexpr uint32_t sum_lanes = 32;                        ///< Channels of a block of distile_sum_pixels.
constexpr uint32_t sum_rows = block_threads / sum_lanes;  ///< Pixels that it reads at once.

/** What is known of some values: their number, mean, and sum of squared deviations; or instead of the mean their
 * maximum. */
struct Moments {
    float count, mean, squares;
};

/** Sums of each channel over the active pixels of each image. */
struct SummedPixels {
    PixelView from;          ///< In elements.
    const uint32_t *xy;      ///< The active pixels, x | y << 16; null: all pixels are active.
    const int32_t *lengths;  ///< The active pixels before each image.
    Divisor width;           ///< Without a list.
    uint32_t pixels;         ///< The pixels of an image, without a list.
    uint32_t channels, blocks;
    int32_t largest;
    Moments *moments;  ///< [image][block][channel]
};

/** The means, or maxima, of all blocks of distile_sum_pixels, written as pixels. */
struct MergedMoments {
    const Moments *moments;
    uint32_t blocks, channels;
    int32_t largest;
    void *to;
    int64_t stride_n;
};

/** The moments of all blocks of distile_sum_pixels, merged for each image and group of channels. */
struct MergedGroups {
    const Moments *moments;
    uint32_t blocks, channels;
    uint32_t group;          ///< Channels of a group.
    float *mean, *variance;  ///< [image][group]
};

/** The group norm of the listed pixels. */
struct NormalizedGroups {
    PixelView from, to;  ///< In elements.
    PixelList list;
    uint32_t vectors;  ///< Per pixel.
    uint32_t team;     ///< Lanes per pixel: a power of two up to 32.
    const float *mean, *variance, *gamma, *beta;
    uint32_t stride;  ///< From one image's statistics to the next: the number of groups, or 0.
    Divisor group;    ///< Channels of a group.
    float epsilon;
    Activation activation;
};

/** The pixels whose scores are above a threshold. */
struct ScoredPixels {
    PixelView from;  ///< In elements.
    Divisor words_per_row, height;
    uint32_t num_words, channels;
    int32_t width;
    int32_t by_lane;  ///< 1: a lane scores a pixel; 0: a warp does, and a block has one word.
    const float *weights;
    float bias, threshold;
    MaskBytes mirror;
};

}  // namespace distile

#endif
