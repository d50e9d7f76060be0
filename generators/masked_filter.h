/** \file
 * Shared by masked operators with a filter: the weights and bias, and the filter's window on the input.
 */
#ifndef DISTILE_MASKED_FILTER_H
#define DISTILE_MASKED_FILTER_H

#include "facts/weight_layouts.h"
#include "generators/virtual_pixels.h"
#include <distile/polykernel.h>

namespace distile {

/** A filter's geometry in pixels. The default, one pixel, is a linear layer's. */
struct Window {
    int kernel_w = 1, kernel_h = 1;
    int stride_w = 1, stride_h = 1;
    int pad_left = 0, pad_top = 0;
    int dilation_w = 1, dilation_h = 1;
};

/** A base class of generators, with the window's geometry as generator parameters. */
class WindowParams {
public:
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

protected:
    WindowParams() = default;
    ~WindowParams() = default;

    Window window() const;
};

class MaskedFilter : public VirtualPixels {
public:
    // Weights are packed as float32: every register tile reads all weights again and would convert narrower ones each
    // time.
    Halide::GeneratorParam<distile_dtype> weights_dtype{"weights_dtype", DISTILE_FLOAT32, float_types_by_name()};
    // The canonical weight layout: blocks of output channels, the last one padded with zeros.
    Halide::GeneratorParam<int> channel_block{"channel_block", DISTILE_CPU_CHANNEL_BLOCK, 1, 1024};

    // [co % block, ci, kx, ky, co / block]; ci counts only the input channels that an output channel reads.
    Halide::GeneratorInput<Halide::Buffer<>> weights{"weights", 5};
    // [co], padded like the weights.
    Halide::GeneratorInput<Halide::Buffer<float>> bias{"bias", 1};

protected:
    MaskedFilter() = default;
    ~MaskedFilter() = default;

    void set_filter_types();
    /** Constrains the shapes of the weights and the bias, or sets their estimates. Each output channel reads
     * `filter_channels` input channels; `columns` and `rows` are those of the packed weights. */
    void constrain_filter(int filter_channels, int out_channels, int columns, int rows);
    void estimate_filter(int filter_channels, int out_channels, int columns, int rows);
    int num_blocks(int out_channels) const;

    /** A weight of an output channel, counted from the first channel of a block, as float32. */
    Halide::Expr weight(const Halide::Expr &channel, const Halide::Expr &ci, const Halide::Expr &kx,
                        const Halide::Expr &ky, const Halide::Expr &first_block = 0);
    /** The input channel with the index of an output channel, of operators whose channels read it alone. */
    Halide::Expr channel_of_lane(int channels);
    /** The input at offset (dx, dy) from the first one that an output pixel reads, as float32. */
    Halide::Expr load_window(const Window &window, const Pixel &pixel, const Halide::Expr &channel,
                             const Halide::Expr &dx, const Halide::Expr &dy, bool in_place);
};

}  // namespace distile

#endif
