#include "generators/masked_conv.h"

namespace distile {

using namespace Halide;

namespace {

/** The number of input channels that an output channel reads. */
int filter_channels(int in_channels, int groups) {
    return in_channels / groups;
}

}  // namespace

void MaskedConv::set_groups(const Conv &conv, const Target &target) {
    readers = target.has_gpu_feature() ? GroupReaders::Threads : GroupReaders::Vectors;
    groups_apart = blocks_of(conv).form() == GroupForm::Padded ? conv.groups : 0;
}

GroupBlocks MaskedConv::blocks_of(const Conv &conv) const {
    return {conv.groups, filter_channels(conv.in_channels, conv.groups), conv.out_channels / conv.groups, channel_block,
            readers};
}

void MaskedConv::define_conv(const Conv &conv) {
    const GroupBlocks blocks = blocks_of(conv);
    if (blocks.form() == GroupForm::Diagonals) {
        define_output([&](const Stage &stage) { return sums_of_diagonals(conv, stage); },
                      [&](const Func &accumulator, const std::vector<Expr> &place) {
                          return sum_of_diagonals(conv, accumulator, place);
                      });
    } else {
        define_output([&](const Stage &stage) { return sums(conv, stage); });
    }
    constrain_buffers(conv.in_channels, conv.out_channels);
    constrain_filter(blocks.group_inputs, blocks.count() * blocks.block, conv.window.kernel_w, conv.window.kernel_h);
}

void MaskedConv::estimate_conv(const Conv &conv, int width, int height) {
    estimate_input(conv.in_channels, width * conv.window.stride_w, height * conv.window.stride_h);
    estimate_output(conv.out_channels, width, height);
    const GroupBlocks blocks = blocks_of(conv);
    estimate_filter(blocks.group_inputs, blocks.count() * blocks.block, conv.window.kernel_w, conv.window.kernel_h);
}

/** The first input channel of an output channel's group. */
Expr MaskedConv::first_channel(const Conv &conv) const {
    const int group_channels = conv.out_channels / conv.groups, block = channel_block;
    if (groups_apart > 0) {
        return group * filter_channels(conv.in_channels, conv.groups);
    }
    // If groups fill whole blocks, each block has one group, but Halide needs this form to see it. Otherwise each
    // thread of a GPU finds its group, and the padding of the last block reads the last group.
    Expr own_group =
        group_channels % block == 0 ? co / block / (group_channels / block) : min(co / group_channels, conv.groups - 1);
    return own_group * filter_channels(conv.in_channels, conv.groups);
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
    if (groups_apart > 0) {
        const GroupBlocks blocks = blocks_of(conv);
        const Expr first_block = group * (blocks.padded_outputs() / blocks.block);
        accumulator(co, p, group) = bias(group * blocks.padded_outputs() + co);
        accumulator(co, p, group) += weight(co, taps.x, taps.y, taps.z, first_block) * value;
    } else {
        accumulator(co, p) = bias(co);
        accumulator(co, p) += weight(co, taps.x, taps.y, taps.z) * value;
    }
    return accumulator;
}

Func MaskedConv::sums_of_diagonals(const Conv &conv, const Stage &stage) {
    const Window &window = conv.window;
    RDom taps(0, window.kernel_w, 0, window.kernel_h, stage.name + "_taps");
    const Expr value = load_window(window, pixel_at(p, stage.last), channel_of_lane(conv.in_channels),
                                   taps.x * window.dilation_w, taps.y * window.dilation_h, stage.in_place);
    Func accumulator(stage.name + "_accumulator");
    accumulator(co, p, diagonal) = 0.0f;
    accumulator(co, p, diagonal) += weight(co, diagonal, taps.x, taps.y) * value;
    return accumulator;
}

/** The sum of an output channel: its bias, and of each diagonal the sum of the input channel that is so far before it
 * in its group. */
Expr MaskedConv::sum_of_diagonals(const Conv &conv, const Func &accumulator, const std::vector<Expr> &place) {
    const int channels = filter_channels(conv.in_channels, conv.groups);
    Expr sum = bias(co);
    for (int d = 0; d < channels; d++) {
        // Bounds inference does not see that it stays in the group.
        const Expr first = co / channels * channels, before = co + ((co + (channels - d)) % channels - co % channels);
        sum += accumulator(unsafe_promise_clamped(before, first, first + (channels - 1)), place[1], d);
    }
    return sum;
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
