#include "generators/masked_filter.h"

namespace distile {

using namespace Halide;

Window WindowParams::window() const {
    return {kernel_w, kernel_h, stride_w, stride_h, pad_left, pad_top, dilation_w, dilation_h};
}

void MaskedFilter::set_filter_types() {
    weights.set_type(stored_type(weights_dtype));
}

void MaskedFilter::constrain_filter(int filter_channels, int out_channels, int columns, int rows) {
    const int extents[] = {channel_block, filter_channels, columns, rows, num_blocks(out_channels)};
    for (int i = 0, stride = 1; i < 5; i++) {
        weights.dim(i).set_bounds(0, extents[i]).set_stride(stride);
        stride *= extents[i];
    }
    weights.set_host_alignment(64);
    bias.dim(0).set_bounds(0, channel_block.value() * num_blocks(out_channels));
    bias.set_host_alignment(64);
}

void MaskedFilter::estimate_filter(int filter_channels, int out_channels, int columns, int rows) {
    const int blocks = num_blocks(out_channels);
    weights.set_estimates({{0, channel_block}, {0, filter_channels}, {0, columns}, {0, rows}, {0, blocks}});
    bias.set_estimates({{0, channel_block.value() * blocks}});
}

int MaskedFilter::num_blocks(int out_channels) const {
    return (out_channels + channel_block.value() - 1) / channel_block.value();
}

Expr MaskedFilter::weight(const Expr &channel, const Expr &ci, const Expr &kx, const Expr &ky,
                          const Expr &first_block) {
    return conversion.to_float32(weights(channel % channel_block, ci, kx, ky, first_block + channel / channel_block),
                                 weights_dtype);
}

Expr MaskedFilter::channel_of_lane(int channels) {
    // The last block of the weights may be padded, but the input has no channels for the padding. `likely` gives the
    // other blocks their own loop.
    return channels % channel_block.value() == 0 ? Expr(co) : min(likely(co), channels - 1);
}

Expr MaskedFilter::load_window(const Window &window, const Pixel &pixel, const Expr &channel, const Expr &dx,
                               const Expr &dy, bool in_place) {
    return load_input(channel, pixel.x * window.stride_w - window.pad_left + dx,
                      pixel.y * window.stride_h - window.pad_top + dy, pixel.n, in_place);
}

}  // namespace distile
