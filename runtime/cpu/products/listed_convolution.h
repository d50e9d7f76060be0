/** \file
 * Convolutions at listed pixels, of any shape, with groups and depthwise, in float32: what stages compute on a CPU,
 * and operators that have no compiled code.
 */
#ifndef DISTILE_CPU_LISTED_CONVOLUTION_H
#define DISTILE_CPU_LISTED_CONVOLUTION_H

#include "runtime/base/context.h"
#include "runtime/cpu/bitmask.h"
#include "runtime/cpu/products/products.h"

namespace distile {

/** How packed weights of this type are stored, which is float32, bfloat16 or int8. */
ProductWeights product_weights(distile_dtype dtype);

/** The panels of output channels. */
constexpr int64_t num_panels(int64_t out_channels) {
    return (out_channels + panel_channels - 1) / panel_channels;
}

/** Pixels of float32 in memory. */
struct PixelMemory {
    float *data;  ///< The address of pixel (0, 0) of the first image.
    int64_t stride_w, stride_h, stride_n;

    float *at(int64_t image, int64_t y, int64_t x) const {
        return data + image * stride_n + y * stride_h + x * stride_w;
    }
    /** The channels from one on. */
    PixelMemory from(int64_t channel) const {
        return {data ? data + channel : nullptr, stride_w, stride_h, stride_n};
    }
};

/** An axis of a convolution's windows. Where they reach outside [begin, end) of the input, they read 0. */
struct ConvolutionAxis {
    int32_t kernel, stride, dilation, pad, begin, end;

    /** Where the window of an output reads a tap. */
    int32_t at(int32_t output, int32_t tap) const {
        return output * stride - pad + tap * dilation;
    }
    bool holds(int32_t place) const {
        return place >= begin && place < end;
    }
};

/** Weights as products.h has them. */
struct PanelWeights {
    const void *numbers;
    ProductWeights type;
    int64_t bytes;         ///< A number takes them.
    const float *factors;  ///< Null: 1.
    int32_t out_channels;
    int64_t reduction;  ///< Taps, times input channels or diagonals.
};

/** Groups of a convolution, each with input and output channels of its own, one behind the other. */
struct ConvolutionGroups {
    int32_t count = 1;
    int64_t weight_bytes = 0;  ///< From the weights of a group to those of the next.
    int64_t biases = 0;        ///< From its biases to those of the next.
};

/** Where pixels are in a list in the order of images, rows and columns. */
struct ListIndex {
    int32_t height, width;
    const int32_t *rows;    ///< [image][row]: the first pixel in the list, and behind the last row their number.
    const int32_t *pixels;  ///< [image][row][column]: where the pixels of the list are in it.
};

/** Pixels: x | y << 16, and the image. */
struct ListedPixels {
    const uint32_t *xy, *image;
    int64_t count;
};

struct ListedConvolution {
    PixelMemory input, output, residual;  ///< A residual without data is none.
    ConvolutionAxis rows, columns;
    int32_t in_channels;  ///< A group's.
    /** 0; or where all groups are one here, because their weights lie by diagonals (runtime/kinds/group_blocks.h), the
     * channels of each: 2, 4 or 8, or 1 in a depthwise convolution. */
    int32_t diagonals;
    PanelWeights weights;  ///< The first group's.
    const float *bias;     ///< Null: 0.
    Activation activation;
    /** The pixels: x | y << 16, and the image. */
    const uint32_t *xy, *image;
    int64_t count;
    const Bitmask *without_activation;  ///< Pixels whose sums stay; null: none.
    const PanelWeights *next;           ///< What is multiplied by afterwards, or null: it is fetched.
    ConvolutionGroups groups = {};      ///< One, if there are convolutions before.
    /** Null, or a convolution whose output is this one's input: nobody else reads it. It then goes through memory that
     * stays in a near cache, `passed`, and need not be stored. Before one of 1 x 1 comes a depthwise one of its pixels;
     * before that, one of the pixels that its windows read, with these in `taken`. */
    const ListedConvolution *before = nullptr;
    const ListIndex *taken = nullptr;
    float *passed = nullptr;
};

/** The numbers for which a convolution with others before it needs `passed`; 0 if they cannot pass through it. */
int64_t passed_numbers(const distile_context &context, const PixelProducts &products,
                       const ListedConvolution &convolution);

/** Computes it on the context's threads. */
void run_convolution(distile_context &context, const PixelProducts &products, const ListedConvolution &convolution);

}  // namespace distile

#endif
