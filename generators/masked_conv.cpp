#include "masked_conv.h"

namespace distile {

using namespace Halide;

namespace {

/** The number of input channels that an output channel reads. */
int filter_channels(int in_channels, int groups) {
    return in_channels / groups;
}

}  // namespace

void MaskedConv::define_conv(const Conv &conv) {
    define_output([&](const Stage &stage) { return sums(conv, stage); });
    constrain_buffers(conv.in_channels, conv.out_channels);
    constrain_filter(filter_channels(conv.in_channels, conv.groups), conv.out_channels, conv.window.kernel_w,
                     conv.window.kernel_h);
}

void MaskedConv::estimate_conv(const Conv &conv, int width, int height) {
    estimate_input(conv.in_channels, width * conv.window.stride_w, height * conv.window.stride_h);
    estimate_output(conv.out_channels, width, height);
    estimate_filter(filter_channels(conv.in_channels, conv.groups), conv.out_channels, conv.window.kernel_w,
                    conv.window.kernel_h);
}

/** The first input channel of an output channel's group. */
Expr MaskedConv::first_channel(const Conv &conv) const {
    const int group_channels = conv.out_channels / conv.groups, block = channel_block;
    // If groups fill whole blocks, each block has one group, but Halide needs this form to see it. Otherwise inputs are
    // gathered, and the padding of the last block reads the last group.
    Expr group =
        group_channels % block == 0 ? co / block / (group_channels / block) : min(co / group_channels, conv.groups - 1);
    return group * filter_channels(conv.in_channels, conv.groups);
}

Func MaskedConv::sums(const Conv &conv, const Stage &stage) {
    const Window &window = conv.window;
    RDom taps(0, filter_channels(conv.in_channels, conv.groups), 0, window.kernel_w, 0, window.kernel_h,
              stage.name + "_taps");
    const Expr channel = conv.groups == 1 ? Expr(taps.x) : first_channel(conv) + taps.x;
    Expr value;
    if (stage.in_place) {
        value = load_window(window, pixel_at(p, stage.last), channel, taps.y * window.dilation_w,
                            taps.z * window.dilation_h, true);
    } else {
        value = staged_input(conv, stage)(channel, taps.y, taps.z, p);
    }
    Func accumulator(stage.name + "_accumulator");
    accumulator(co, p) = bias(co);
    accumulator(co, p) += weight(co, taps.x, taps.y, taps.z) * value;
    return accumulator;
}

/** The staged input of a stage, a Func of (ci, kx, ky, p). */
Func MaskedConv::staged_input(const Conv &conv, const Stage &stage) {
    const Window &window = conv.window;
    Func staging(stage.name + "_input");
    if (on_gpu()) {
        // A separate Func, so a block looks up its tiles once for all taps and channels.
        Func lookup(stage.name + "_lookup"), windows(stage.name + "_window");
        lookup(tile) = pack(origin_of(tile, stage.last));
        windows(ci, wx, wy, tile) = load_window(window, unpack(lookup(tile)), ci, wx, wy, stage.in_place);
        staging(ci, kx, ky, p) =
            windows(ci, p % tile_columns() * window.stride_w + kx * window.dilation_w,
                    p / tile_columns() % tile_rows() * window.stride_h + ky * window.dilation_h, p / pixels_per_tile());
    } else {
        staging(ci, kx, ky, p) = load_window(window, pixel_at(p, stage.last), ci, kx * window.dilation_w,
                                             ky * window.dilation_h, stage.in_place);
    }
    return staging;
}

}  // namespace distile
