/** \file
 * What convolutions of listed pixels share: pixels of a list, what is passed from one convolution to the next, and
 * activations that products apply themselves.
 */
#ifndef DISTILE_CPU_LISTED_PIXELS_H
#define DISTILE_CPU_LISTED_PIXELS_H

#include "runtime/cpu/products/listed_convolution.h"
#include <limits>

namespace distile {

/** Read where a window reaches outside the input. */
constexpr int64_t most_piece_channels = 4096;
extern const float outside_input[most_piece_channels];

constexpr int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/** [begin, end) of pixels, sets or numbers. */
struct ListRange {
    int64_t begin, end;
};

struct ListedPixel {
    int32_t image, y, x;
};

inline ListedPixel pixel_at(const ListedPixels &pixels, int64_t index) {
    const uint32_t xy = pixels.xy[index];
    return {static_cast<int32_t>(pixels.image[index]), static_cast<int32_t>(xy >> 16),
            static_cast<int32_t>(xy & 0xffff)};
}
inline ListedPixel pixel_at(const ListedConvolution &convolution, int64_t index) {
    return pixel_at(ListedPixels{convolution.xy, convolution.image, convolution.count}, index);
}
inline float *address(const PixelMemory &memory, const ListedPixel &pixel) {
    return memory.at(pixel.image, pixel.y, pixel.x);
}
inline bool is_active(const Bitmask &bits, const ListedPixel &pixel) {
    const uint64_t *row = bits.words + (int64_t{pixel.image} * bits.height + pixel.y) * bits.words_per_row();
    return (row[pixel.x / 64] >> (pixel.x % 64) & 1) != 0;
}

/** From a window's first input to that of a tap. */
inline int64_t tap_offset(const ListedConvolution &convolution, int32_t tap) {
    const ConvolutionAxis &rows = convolution.rows, &columns = convolution.columns;
    return int64_t{tap / columns.kernel} * rows.dilation * convolution.input.stride_h +
           int64_t{tap % columns.kernel} * columns.dilation * convolution.input.stride_w;
}

/** What a convolution passes on: the channels of some pixels, or null. */
struct PassedPixels {
    float *numbers = nullptr;
    int64_t first = 0;  ///< The first pixel's index.
    int64_t mask = -1;  ///< Pixels take the places of those before whose index differs in other bits alone.

    float *at(int64_t pixel, int64_t channels) const {
        return numbers + ((pixel - first) & mask) * channels;
    }
};

/** Numbers between which an activation keeps a sum, if that is all that it does. */
struct ActivationLimits {
    bool are_all;
    float least = -std::numeric_limits<float>::infinity(), most = std::numeric_limits<float>::infinity();

    explicit ActivationLimits(distile_activation activation)
        : are_all(activation == DISTILE_ACTIVATION_NONE || activation == DISTILE_ACTIVATION_RELU ||
                  activation == DISTILE_ACTIVATION_RELU6) {
        if (activation != DISTILE_ACTIVATION_NONE) {
            least = 0;
        }
        if (activation == DISTILE_ACTIVATION_RELU6) {
            most = 6;
        }
    }
};

}  // namespace distile

#endif
