/** \file
 * Masked 2-D convolution, channels innermost:
 *
 *     output(co, x, y, n) = epilogue(bias(co) + sum over ci, kx, ky of weights * input [+ residual])
 *
 * at the active pixels of the tiles in a list (virtual_pixels.h). With groups, ci runs over the input channels of the
 * output channel's group alone. On a CPU the tiles at a border stage their input, so that phantom reads are replaced by
 * zeros once for all output channels.
 *
 * A GPU stages every input in shared memory anyway. What it stages is read through a Func over the tiles' *windows*:
 * all the input that any pixel of a tile reads, which pixels and taps share. A schedule keeps either the windows or the
 * pixels of one tap in shared memory; the other Func is inlined.
 */
#include "masked_filter.h"

namespace {

using namespace Halide;

class MaskedConv2d : public Generator<MaskedConv2d>, public distile::MaskedFilter {
public:
    GeneratorParam<int> in_channels{"in_channels", 64, 1, 1 << 20};
    GeneratorParam<int> out_channels{"out_channels", 64, 1, 1 << 20};
    // Divides both: output channels read the input channels of their own group only.
    GeneratorParam<int> groups{"groups", 1, 1, 1 << 20};

    void configure() {
        if (in_channels.value() % groups.value() != 0 || out_channels.value() % groups.value() != 0) {
            throw CompileError("masked_conv2d: groups must divide in_channels and out_channels.\n");
        }
        set_filter_types();
        add_last_arguments(*this);
    }

    void generate() {
        define_output([this](const Stage &stage) { return sums(stage); });
        constrain_buffers(in_channels, out_channels);
        constrain_filter(filter_channels(), out_channels, kernel_w, kernel_h);
    }

    void schedule() {
        estimate_buffers(in_channels, out_channels, estimated_extent * stride_w.value(),
                         estimated_extent * stride_h.value());
        estimate_filter(filter_channels(), out_channels, kernel_w, kernel_h);
    }

private:
    Var ci{"ci"}, kx{"kx"}, ky{"ky"}, tile{"tile"}, wx{"wx"}, wy{"wy"};

    /** The input channels that an output channel reads. */
    int filter_channels() const {
        return in_channels.value() / groups.value();
    }

    /** The first input channel of an output channel's group. */
    Expr first_channel() const {
        const int group_channels = out_channels.value() / groups.value(), block = channel_block;
        // Where groups fill whole blocks, a block has one group, which Halide sees only if we say so. Elsewhere inputs
        // are gathered, and the zeros that pad the last block meet the last group's.
        Expr group =
            group_channels % block == 0 ? co / block / (group_channels / block) : min(co / group_channels, groups - 1);
        return group * filter_channels();
    }

    Func sums(const Stage &stage) {
        RDom taps(0, filter_channels(), 0, kernel_w, 0, kernel_h, stage.name + "_taps");
        const Expr channel = groups == 1 ? Expr(taps.x) : first_channel() + taps.x;
        Expr value;
        if (stage.in_place) {
            value = load_window(pixel_at(p, stage.last), channel, taps.y * dilation_w, taps.z * dilation_h, true);
        } else {
            value = staged_input(stage)(channel, taps.y, taps.z, p);
        }
        Func accumulator(stage.name + "_accumulator");
        accumulator(co, p) = bias(co);
        accumulator(co, p) += weights(co % channel_block, taps.x, taps.y, taps.z, co / channel_block) * value;
        return accumulator;
    }

    /** What the pixels of a stage read: a Func of (ci, kx, ky, p). */
    Func staged_input(const Stage &stage) {
        Func staging(stage.name + "_input");
        if (on_gpu()) {
            // A Func of its own, so that a block looks up its tiles once for all taps and channels.
            Func lookup(stage.name + "_lookup"), window(stage.name + "_window");
            lookup(tile) = pack(origin_of(tile, stage.last));
            window(ci, wx, wy, tile) = load_window(unpack(lookup(tile)), ci, wx, wy, false);
            staging(ci, kx, ky, p) =
                window(ci, p % tile_columns() * stride_w + kx * dilation_w,
                       p / tile_columns() % tile_rows() * stride_h + ky * dilation_h, p / pixels_per_tile());
        } else {
            staging(ci, kx, ky, p) = load_window(pixel_at(p, stage.last), ci, kx * dilation_w, ky * dilation_h, false);
        }
        return staging;
    }
};

}  // namespace

HALIDE_REGISTER_GENERATOR(MaskedConv2d, masked_conv2d)
