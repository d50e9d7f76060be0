/** \file
 * Masked convolutions that enlarge their input, channels innermost:
 *
 *  - masked_conv_transpose2d, a transposed convolution. Input pixel (x, y) adds weights(kx, ky) * input to output pixel
 *    (x * stride_w - pad_left + kx * dilation_w, y * stride_h - pad_top + ky * dilation_h).
 *  - masked_upsample_conv2d, a stride-1 convolution after nearest upsampling by scale_h x scale_w. It reads the input
 * in place; the upsampled image is never made.
 *
 * The output pixels with the same remainder modulo the stride (or scale) form a *phase*, which is a stride-1
 * convolution of the input (polyphase.h). A virtual pixel has the input's resolution and stands for one output pixel of
 * each phase, so a register tile computes pixels of one phase with the same weights. The phase is a loop around all
 * tiles, or a dimension of a GPU's grid. After upsampling, kernel taps that read the same input pixel were summed when
 * the weights were packed.
 */
#include "generators/masked_filter.h"
#include "runtime/kinds/polyphase.h"

namespace {

using namespace Halide;
using distile::Phase;
using distile::PolyphaseAxis;

class PolyphaseConv : public distile::MaskedFilter, public distile::WindowParams {
public:
    GeneratorParam<int> in_channels{"in_channels", 64, 1, 1 << 20};
    GeneratorParam<int> out_channels{"out_channels", 64, 1, 1 << 20};

protected:
    PolyphaseConv() = default;
    ~PolyphaseConv() = default;

    void define(const PolyphaseAxis &across, const PolyphaseAxis &down) {
        columns = across;
        rows = down;
        scale_w = columns.stride;
        scale_h = rows.stride;
        define_output([this](const Stage &stage) { return sums(stage); });
        constrain_buffers(in_channels, out_channels);
        constrain_filter(in_channels, out_channels, columns.num_taps(), rows.num_taps());
    }

    void estimate() {
        estimate_input(in_channels, estimated_extent / scale_w + 1, estimated_extent / scale_h + 1);
        estimate_output(out_channels, estimated_extent, estimated_extent);
        estimate_filter(in_channels, out_channels, columns.num_taps(), rows.num_taps());
    }

private:
    PolyphaseAxis columns{}, rows{};
    Var ci{"ci"}, kx{"kx"}, ky{"ky"}, tile{"tile"}, wx{"wx"}, wy{"wy"};
    Var co_in_block{"co_in_block"}, block{"block"};

    /** A phase along an axis. Values that all phases share are constants. */
    struct PhaseExprs {
        Expr first, step, taps, begin;
    };

    static Expr member_of(const std::vector<Phase> &phases, int Phase::*member, const Expr &index) {
        std::vector<Expr> values;
        bool alike = true;
        for (const Phase &phase : phases) {
            values.emplace_back(phase.*member);
            alike = alike && phase.*member == phases[0].*member;
        }
        return alike ? values[0] : mux(index, values);
    }

    static PhaseExprs exprs_of(const PolyphaseAxis &axis, const Expr &index) {
        const std::vector<Phase> phases = axis.phases();
        return {member_of(phases, &Phase::first, index), member_of(phases, &Phase::step, index),
                member_of(phases, &Phase::taps, index), member_of(phases, &Phase::begin, index)};
    }

    /** The input value that a tap of a phase reads for a virtual pixel. */
    Expr load_tap(const Stage &stage, const Expr &channel, const Expr &tap_x, const Expr &tap_y) {
        const PhaseExprs across = exprs_of(columns, phase % scale_w), down = exprs_of(rows, phase / scale_w);
        const Expr dx = across.first + tap_x * across.step, dy = down.first + tap_y * down.step;
        if (on_gpu()) {
            return window(stage)(channel, p % tile_columns() + dx, p / tile_columns() % tile_rows() + dy,
                                 p / pixels_per_tile());
        }
        const Pixel pixel = pixel_at(p, stage.last);
        return load_input(channel, pixel.x + dx, pixel.y + dy, pixel.n, stage.in_place);
    }

    /** The input of a tile, relative to its first virtual pixel (masked_conv.h). */
    Func window(const Stage &stage) {
        Func lookup(stage.name + "_lookup"), windows(stage.name + "_window");
        lookup(tile) = pack(origin_of(tile, stage.last));
        const Pixel origin = unpack(lookup(tile));
        windows(ci, wx, wy, tile) =
            load_input(ci, origin.x / scale_w + wx, origin.y / scale_h + wy, origin.n, stage.in_place);
        return windows;
    }

    /** The weights of a phase's taps. A GPU stages them through a separate Func, because Halide's bounds inference does
     * not see how few weights one phase has; it also stages the weights of taps that a phase lacks. */
    Expr weight_of_tap(const Stage &stage, const RDom &taps) {
        const PhaseExprs across = exprs_of(columns, phase % scale_w), down = exprs_of(rows, phase / scale_w);
        const int last_column = columns.num_taps() - 1, last_row = rows.num_taps() - 1;
        if (!on_gpu() || !has_phases()) {
            return weight(co, taps.x, unsafe_promise_clamped(across.begin + taps.y, 0, last_column),
                          unsafe_promise_clamped(down.begin + taps.z, 0, last_row));
        }
        Func of_phase(stage.name + "_weights");
        of_phase(co_in_block, ci, kx, ky, block, phase) = weights(
            co_in_block, ci, clamp(across.begin + kx, 0, last_column), clamp(down.begin + ky, 0, last_row), block);
        return conversion.to_float32(of_phase(co % channel_block, taps.x, taps.y, taps.z, co / channel_block, phase),
                                     weights_dtype);
    }

    /** A dilation above the scale passes over input pixels, whose taps have no weights. Times zero they would still
     * pass on a NaN. */
    static void skip_empty_taps(RDom &taps, const PolyphaseAxis &axis, const Expr &tap) {
        std::vector<Expr> is_read;
        bool all_read = true;
        for (const distile::MergedTap &merged : axis.taps()) {
            const bool read = merged.begin < merged.end;
            is_read.push_back(cast<bool>(read));
            all_read = all_read && read;
        }
        if (!all_read) {
            taps.where(mux(tap, is_read));
        }
    }

    Func sums(const Stage &stage) {
        const PhaseExprs across = exprs_of(columns, phase % scale_w), down = exprs_of(rows, phase / scale_w);
        RDom taps(0, in_channels, 0, columns.most_taps(), 0, rows.most_taps(), stage.name + "_taps");
        // A phase may have fewer taps than another.
        if (!Internal::is_const(across.taps)) {
            taps.where(taps.y < across.taps);
        }
        if (!Internal::is_const(down.taps)) {
            taps.where(taps.z < down.taps);
        }
        skip_empty_taps(taps, columns, across.begin + taps.y);
        skip_empty_taps(taps, rows, down.begin + taps.z);
        const std::vector<Var> place = has_phases() ? std::vector<Var>{p, phase} : std::vector<Var>{p};
        Expr value;
        if (stage.in_place) {
            value = load_tap(stage, taps.x, taps.y, taps.z);
        } else {
            Func staging(stage.name + "_input");
            std::vector<Var> staged = {ci, kx, ky};
            std::vector<Expr> wanted = {taps.x, taps.y, taps.z};
            staged.insert(staged.end(), place.begin(), place.end());
            wanted.insert(wanted.end(), place.begin(), place.end());
            staging(staged) = load_tap(stage, ci, kx, ky);
            value = staging(wanted);
        }
        Func accumulator(stage.name + "_accumulator");
        std::vector<Var> sum = {co};
        sum.insert(sum.end(), place.begin(), place.end());
        accumulator(sum) = bias(co);
        accumulator(sum) += weight_of_tap(stage, taps) * value;
        return accumulator;
    }
};

class MaskedConvTranspose2d : public Generator<MaskedConvTranspose2d>, public PolyphaseConv {
public:
    // Only the runtime needs these, for the size of the output.
    GeneratorParam<int> output_padding_h{"output_padding_h", 0, 0, 1023};
    GeneratorParam<int> output_padding_w{"output_padding_w", 0, 0, 1023};

    void configure() {
        set_filter_types();
        add_last_arguments(*this);
    }
    void generate() {
        define({kernel_w, stride_w, pad_left, pad_right, dilation_w, false},
               {kernel_h, stride_h, pad_top, pad_bottom, dilation_h, false});
    }
    void schedule() {
        estimate();
    }
};

class MaskedUpsampleConv2d : public Generator<MaskedUpsampleConv2d>, public PolyphaseConv {
public:
    GeneratorParam<int> scale_factor_h{"scale_h", 2, 1, 1024};
    GeneratorParam<int> scale_factor_w{"scale_w", 2, 1, 1024};

    void configure() {
        set_filter_types();
        add_last_arguments(*this);
    }
    void generate() {
        if (stride_h != 1 || stride_w != 1) {
            throw CompileError(
                "masked_upsample_conv2d needs a stride of 1; set scale_h and scale_w to enlarge its input.\n");
        }
        define({kernel_w, scale_factor_w, pad_left, pad_right, dilation_w, true},
               {kernel_h, scale_factor_h, pad_top, pad_bottom, dilation_h, true});
    }
    void schedule() {
        estimate();
    }
};

}  // namespace

HALIDE_REGISTER_GENERATOR(MaskedConvTranspose2d, masked_conv_transpose2d)
HALIDE_REGISTER_GENERATOR(MaskedUpsampleConv2d, masked_upsample_conv2d)
