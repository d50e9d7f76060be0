/** \file
 * What masked operators with a filter share, beside their virtual pixels: its geometry, weights and bias.
 */
#ifndef DISTILE_MASKED_FILTER_H
#define DISTILE_MASKED_FILTER_H

#include "virtual_pixels.h"
#include <distile/polykernel.h>

namespace distile {

class MaskedFilter : public VirtualPixels {
public:
    // Extents and padding are in pixels.
    Halide::GeneratorParam<int> kernel_h{"kernel_h", 3, 1, 1024};
    Halide::GeneratorParam<int> kernel_w{"kernel_w", 3, 1, 1024};
    Halide::GeneratorParam<int> stride_h{"stride_h", 1, 1, 1024};
    Halide::GeneratorParam<int> stride_w{"stride_w", 1, 1, 1024};
    Halide::GeneratorParam<int> pad_top{"pad_top", 1, 0, 1 << 16};
    Halide::GeneratorParam<int> pad_bottom{"pad_bottom", 1, 0, 1 << 16};
    Halide::GeneratorParam<int> pad_left{"pad_left", 1, 0, 1 << 16};
    Halide::GeneratorParam<int> pad_right{"pad_right", 1, 0, 1 << 16};
    Halide::GeneratorParam<int> dilation_h{"dilation_h", 1, 1, 1024};
    Halide::GeneratorParam<int> dilation_w{"dilation_w", 1, 1, 1024};

    // The canonical weight layout: output channels in blocks, padded with zeros to whole blocks.
    Halide::GeneratorParam<int> channel_block{"channel_block", DISTILE_CPU_CHANNEL_BLOCK, 1, 1024};

    // [co % block, ci, kx, ky, co / block], where ci counts the input channels that an output channel reads.
    Halide::GeneratorInput<Halide::Buffer<>> weights{"weights", 5};
    // [co], padded like the weights.
    Halide::GeneratorInput<Halide::Buffer<>> bias{"bias", 1};

protected:
    MaskedFilter() = default;
    ~MaskedFilter() = default;

    void set_filter_types();
    /** What is known of the weights and the bias of an operator whose output channels read `filter_channels` input
     * channels each; and their estimates. `columns` and `rows` are those of the packed weights. */
    void constrain_filter(int filter_channels, int out_channels, int columns, int rows);
    void estimate_filter(int filter_channels, int out_channels, int columns, int rows);
    int num_blocks(int out_channels) const;

    /** A convolution's input at (dx, dy) from the first that an output pixel reads. */
    Halide::Expr load_window(const Pixel &pixel, const Halide::Expr &channel, const Halide::Expr &dx,
                             const Halide::Expr &dy, bool in_place);
};

}  // namespace distile

#endif
