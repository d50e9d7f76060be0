/** \file
 * Masked 2-D convolution, channels innermost:
 *
 *     output(co, x, y, n) = epilogue(bias(co) + sum over ci, kx, ky of weights * input [+ residual])
 *
 * at the active pixels of the tiles in a list; every other output pixel keeps its value. The algorithm
 * runs over a *virtual pixel domain*: pixel p is pixel p % (tile_h * tile_w) of tile p / (tile_h * tile_w)
 * of the list, so that a schedule may cut the domain anywhere, also across tiles. On a CPU it has two update
 * stages: the first for tiles whose reads all lie inside the input's allocation, read in place; the second for
 * the others, whose reads outside (phantom reads) are replaced by zeros while they are staged.
 *
 * A GPU stages every input in shared memory anyway, so that one update stage serves all tiles; it takes no
 * notice of num_interior and threads. What it stages is read through a Func over the tiles' *windows*: all the input
 * that any pixel of a tile reads, which pixels and taps share. A schedule keeps either the windows or the pixels of one
 * tap in shared memory; the other Func is inlined. There num_tiles is only what the launch covers: the length of the
 * list is in the device's memory (tile_count), so that a list made on the device need not be waited for.
 */
#include "Halide.h"

namespace {

using namespace Halide;

enum class Epilogue { None, Relu, Relu6, Silu };

class MaskedConv2d : public Generator<MaskedConv2d> {
public:
    // The operator. Extents and padding are in pixels.
    GeneratorParam<Type> dtype{"dtype", Float(32)};
    GeneratorParam<int> in_channels{"in_channels", 64, 1, 1 << 20};
    GeneratorParam<int> out_channels{"out_channels", 64, 1, 1 << 20};
    GeneratorParam<int> kernel_h{"kernel_h", 3, 1, 1024};
    GeneratorParam<int> kernel_w{"kernel_w", 3, 1, 1024};
    GeneratorParam<int> stride_h{"stride_h", 1, 1, 1024};
    GeneratorParam<int> stride_w{"stride_w", 1, 1, 1024};
    GeneratorParam<int> pad_top{"pad_top", 1, 0, 1 << 16};
    GeneratorParam<int> pad_bottom{"pad_bottom", 1, 0, 1 << 16};
    GeneratorParam<int> pad_left{"pad_left", 1, 0, 1 << 16};
    GeneratorParam<int> pad_right{"pad_right", 1, 0, 1 << 16};
    GeneratorParam<int> dilation_h{"dilation_h", 1, 1, 1024};
    GeneratorParam<int> dilation_w{"dilation_w", 1, 1, 1024};
    GeneratorParam<Epilogue> epilogue{
        "epilogue",
        Epilogue::None,
        {{"none", Epilogue::None}, {"relu", Epilogue::Relu}, {"relu6", Epilogue::Relu6}, {"silu", Epilogue::Silu}}};
    GeneratorParam<bool> residual{"residual", false};

    // The canonical weight layout: output channels in blocks, padded with zeros to whole blocks.
    GeneratorParam<int> channel_block{"channel_block", 16, 1, 1024};

    // The granularity of the tiles in the list, in output pixels.
    GeneratorParam<int> tile_h{"tile_h", 1, 1, 65535};
    GeneratorParam<int> tile_w{"tile_w", 1, 1, 65535};

    // [ci, x, y, n]. The minimum of x and y is minus the width of the zero border, if there is one.
    Input<Buffer<>> input{"input", 4};
    // [co % block, ci, kx, ky, co / block]
    Input<Buffer<>> weights{"weights", 5};
    // [co], padded like the weights.
    Input<Buffer<>> bias{"bias", 1};
    // [tile, 2]: the origin x | y << 16 in pixels, and the index of the image.
    Input<Buffer<uint32_t>> tiles{"tiles", 2};
    // [x / 32, y, n]: the mask, one bit per output pixel.
    Input<Buffer<uint32_t>> bits{"bits", 3};
    // The first num_interior of the num_tiles tiles are read in place.
    Input<int32_t> num_interior{"num_interior"};
    Input<int32_t> num_tiles{"num_tiles"};
    // Threads that the call may use: schedules balance their tasks by it.
    Input<int32_t> threads{"threads"};
    // Store every pixel of the listed tiles, not only the active ones.
    Input<bool> store_tiles{"store_tiles"};

    Output<Buffer<>> output{"output", 4};

    void configure() {
        input.set_type(dtype);
        weights.set_type(dtype);
        bias.set_type(dtype);
        output.set_type(dtype);
        if (on_gpu()) {
            tile_count = add_input<Buffer<uint32_t>>("tile_count", 1);
        }
        if (residual) {
            residual_input = add_input<Buffer<>>("residual_input", dtype, 4);
        }
    }

    void generate() {
        output(co, x, y, n) = undef(dtype);
        if (on_gpu()) {
            add_stage("listed", 0, num_tiles, true);
        } else {
            add_stage("interior", 0, num_interior, false);
            add_stage("border", num_interior, num_tiles, true);
        }

        input.dim(0).set_bounds(0, in_channels).set_stride(1);
        input.dim(3).set_min(0);
        for (int i = 1; i < 4; i++) {
            output.dim(i).set_min(0);
        }
        output.dim(0).set_bounds(0, out_channels).set_stride(1);
        if (residual) {
            residual_input->dim(0).set_bounds(0, out_channels).set_stride(1);
            for (int i = 1; i < 4; i++) {
                residual_input->dim(i).set_bounds(0, output.dim(i).extent());
            }
        }
        const int extents[] = {channel_block, in_channels, kernel_w, kernel_h, num_blocks()};
        for (int i = 0, stride = 1; i < 5; i++) {
            weights.dim(i).set_bounds(0, extents[i]).set_stride(stride);
            stride *= extents[i];
        }
        weights.set_host_alignment(64);
        bias.dim(0).set_bounds(0, channel_block.value() * num_blocks());
        bias.set_host_alignment(64);
        tiles.dim(0).set_min(0);
        tiles.dim(1).set_bounds(0, 2);
        for (int i = 0; i < 3; i++) {
            bits.dim(i).set_min(0);
        }
        if (on_gpu()) {
            tile_count->dim(0).set_bounds(0, 1);
            // A GPU loads 16 bytes at once, but only from addresses that are known to be multiples of 16.
            align_pixels(input, in_channels);
            align_pixels(output, out_channels);
            if (residual) {
                align_pixels(*residual_input, out_channels);
            }
        }
    }

    void schedule() {
        // Estimates let any autoscheduler run; the masked pixels dominate, so 40 x 40 serves as well as any.
        const int extent = 40;
        input.set_estimates({{0, in_channels}, {0, extent * stride_w.value()}, {0, extent * stride_h.value()}, {0, 1}});
        weights.set_estimates({{0, channel_block}, {0, in_channels}, {0, kernel_w}, {0, kernel_h}, {0, num_blocks()}});
        bias.set_estimates({{0, channel_block.value() * num_blocks()}});
        tiles.set_estimates({{0, extent * extent}, {0, 2}});
        bits.set_estimates({{0, 2}, {0, extent}, {0, 1}});
        num_interior.set_estimate(extent * extent / 2);
        num_tiles.set_estimate(extent * extent / 2);
        threads.set_estimate(2);
        store_tiles.set_estimate(false);
        if (on_gpu()) {
            tile_count->set_estimates({{0, 1}});
        }
        if (residual) {
            residual_input->set_estimates({{0, out_channels}, {0, extent}, {0, extent}, {0, 1}});
        }
        output.set_estimates({{0, out_channels}, {0, extent}, {0, extent}, {0, 1}});
    }

private:
    /** An output pixel, and whether its virtual pixel lies inside the image at all (a tile at the
     * right or bottom edge may reach beyond it; its coordinates are then clamped). */
    struct Pixel {
        Expr x, y, n, exists;
    };

    Var co{"co"}, ci{"ci"}, kx{"kx"}, ky{"ky"}, p{"p"}, x{"x"}, y{"y"}, n{"n"}, tile{"tile"}, wx{"wx"}, wy{"wy"};
    Input<Buffer<>> *residual_input = nullptr;
    // [1]: the number of tiles in the list, at most num_tiles of which are computed.
    Input<Buffer<uint32_t>> *tile_count = nullptr;

    bool on_gpu() const {
        return get_target().has_gpu_feature();
    }

    /** Lets every pixel begin at a multiple of 16 bytes, if its channels come to one. */
    template<typename ImageBuffer> void align_pixels(ImageBuffer &image, int channels) {
        const int lanes = 16 / dtype.value().bytes();
        if (channels % lanes == 0) {
            image.set_host_alignment(16);
            for (int i = 1; i < 4; i++) {
                image.dim(i).set_stride(image.dim(i).stride() / lanes * lanes);
            }
        }
    }

    int pixels_per_tile() const {
        return tile_h.value() * tile_w.value();
    }

    int num_blocks() const {
        return (out_channels.value() + channel_block.value() - 1) / channel_block.value();
    }

    /** The length of the list, on a GPU. Only the device may read it; but bounds are computed on the host, and the
     * bounds of a load from a constant place are the load itself. So we let the place depend on the pixel's index: it
     * is 0, because the runtime launches no 2^30 virtual pixels at once, but Halide cannot know it. */
    Expr listed_tiles(const Expr &index) {
        return (*tile_count)(index / (1 << 30));
    }

    /** A pixel as two words whose bounds Halide does not know, so that it has no reason to clamp them again. */
    Tuple pack(const Pixel &pixel) {
        return Tuple(cast<uint32_t>(pixel.x) | cast<uint32_t>(pixel.y) << 16, cast<uint32_t>(pixel.n));
    }

    Pixel unpack(const Tuple &words) {
        Pixel pixel;
        pixel.x = cast<int>(words[0] & 0xffff);
        pixel.y = cast<int>(words[0] >> 16);
        pixel.n = cast<int>(words[1]);
        pixel.exists = cast<bool>(true);
        return pixel;
    }

    /** The first pixel of a tile, in a stage over the tiles before `last`. */
    Pixel origin_of(const Expr &index, const Expr &last) {
        // A schedule rounds a stage's domain up to whole register tiles: beyond its end it repeats the stage's last
        // tile, because the next one in the list may not be readable in place.
        // On a GPU only the device knows how many tiles the list holds. The promise keeps bounds, which the host
        // computes, from asking for that number. (Where the list is empty nothing runs, but Halide still checks
        // the access.)
        const Expr listed = on_gpu() ? cast<int>(listed_tiles(index)) : last;
        const Expr tile = unsafe_promise_clamped(min(index, listed - 1), 0, tiles.dim(0).max());
        Expr xy = tiles(tile, 0);
        Expr last_x = output.dim(1).extent() - 1, last_y = output.dim(2).extent() - 1;
        Pixel pixel;
        // The promises hold because the runtime lists only origins and images that exist.
        pixel.x = unsafe_promise_clamped(cast<int>(xy & 0xffff), 0, last_x);
        pixel.y = unsafe_promise_clamped(cast<int>(xy >> 16), 0, last_y);
        pixel.n = unsafe_promise_clamped(cast<int>(tiles(tile, 1)), 0, output.dim(3).extent() - 1);
        pixel.exists = cast<bool>(true);
        return pixel;
    }

    /** The virtual pixel of an index, in a stage over the tiles before `last`. */
    Pixel pixel_at(const Expr &index, const Expr &last) {
        Pixel pixel = origin_of(index / pixels_per_tile(), last);
        const Expr last_x = output.dim(1).extent() - 1, last_y = output.dim(2).extent() - 1;
        if (tile_w > 1) {
            Expr virtual_x = pixel.x + index % tile_w;
            pixel.exists = pixel.exists && virtual_x <= last_x;
            pixel.x = min(virtual_x, last_x);
        }
        if (tile_h > 1) {
            Expr virtual_y = pixel.y + (index / tile_w) % tile_h;
            pixel.exists = pixel.exists && virtual_y <= last_y;
            pixel.y = min(virtual_y, last_y);
        }
        return pixel;
    }

    Expr is_stored(const Pixel &pixel, const Expr &index) {
        Expr word = bits(pixel.x / 32, pixel.y, pixel.n);
        Expr active = ((word >> cast<uint32_t>(pixel.x % 32)) & 1) != 0;
        Expr stored = pixel.exists && (store_tiles || active);
        if (on_gpu()) {
            // As unsigned numbers, because Halide would shrink the domain, on the host, to what it can solve for.
            stored = cast<uint32_t>(index / pixels_per_tile()) < listed_tiles(index) && stored;
        }
        return stored;
    }

    /** The input at (dx, dy) from the first that an output pixel reads. */
    Expr load_input(const Pixel &pixel, const Expr &channel, const Expr &dx, const Expr &dy, bool zero_outside) {
        Expr at[2] = {pixel.x * stride_w - pad_left + dx, pixel.y * stride_h - pad_top + dy};
        Expr inside = cast<bool>(true);
        Expr legal[2];
        for (int d = 0; d < 2; d++) {
            Expr first = input.dim(d + 1).min(), last = input.dim(d + 1).max();
            inside = inside && at[d] >= first && at[d] <= last;
            // Halide evaluates both sides of a select, so that a phantom read needs a legal address too.
            legal[d] = zero_outside ? clamp(at[d], first, last) : unsafe_promise_clamped(at[d], first, last);
        }
        Expr image = unsafe_promise_clamped(pixel.n, 0, input.dim(3).extent() - 1);
        Expr value = input(channel, legal[0], legal[1], image);
        return zero_outside ? select(inside, value, cast(dtype, 0)) : value;
    }

    Expr apply_epilogue(const Expr &value) {
        switch (epilogue) {
        case Epilogue::None:
            return value;
        case Epilogue::Relu:
            return max(value, cast(dtype, 0));
        case Epilogue::Relu6:
            return clamp(value, cast(dtype, 0), cast(dtype, 6));
        case Epilogue::Silu:
            return value / (cast(dtype, 1) + exp(-value));
        }
        return value;
    }

    /** Adds the update stage of the output for the tiles [first, last). */
    void add_stage(const std::string &name, const Expr &first, const Expr &last, bool staged) {
        RDom taps(0, in_channels, 0, kernel_w, 0, kernel_h, name + "_taps");

        Expr value;
        if (staged) {
            Func stage(name + "_input");
            if (on_gpu()) {
                // A Func of its own, so that a block looks up its tiles once for all taps and channels.
                Func lookup(name + "_lookup"), window(name + "_window");
                lookup(tile) = pack(origin_of(tile, last));
                window(ci, wx, wy, tile) = load_input(unpack(lookup(tile)), ci, wx, wy, true);
                stage(ci, kx, ky, p) = window(ci, p % tile_w * stride_w + kx * dilation_w,
                                              p / tile_w % tile_h * stride_h + ky * dilation_h, p / pixels_per_tile());
            } else {
                stage(ci, kx, ky, p) = load_input(pixel_at(p, last), ci, kx * dilation_w, ky * dilation_h, true);
            }
            value = stage(taps.x, taps.y, taps.z, p);
        } else {
            value = load_input(pixel_at(p, last), taps.x, taps.y * dilation_w, taps.z * dilation_h, false);
        }

        Func accumulator(name + "_accumulator");
        accumulator(co, p) = bias(co);
        accumulator(co, p) += weights(co % channel_block, taps.x, taps.y, taps.z, co / channel_block) * value;

        RDom domain(first * pixels_per_tile(), (last - first) * pixels_per_tile(), name + "_pixels");
        Pixel pixel = pixel_at(domain.x, last);
        domain.where(is_stored(pixel, domain.x));
        Expr result = accumulator(co, domain.x);
        if (residual) {
            result += (*residual_input)(co, pixel.x, pixel.y, pixel.n);
        }
        output(co, pixel.x, pixel.y, pixel.n) = apply_epilogue(result);
    }
};

}  // namespace

HALIDE_REGISTER_GENERATOR(MaskedConv2d, masked_conv2d)
