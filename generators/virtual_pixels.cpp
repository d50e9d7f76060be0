#include "generators/virtual_pixels.h"
#include "facts/activations.h"

namespace distile {

using namespace Halide;

void VirtualPixels::add_last_arguments(Internal::GeneratorBase &generator) {
    const Target target = generator.context().target();
    gpu = target.has_gpu_feature();
    conversion = StorageConversion(target);
    input.set_type(stored_type(input_dtype()));
    const Type type = stored_type(dtype);
    if (gpu) {
        tile_count = generator.add_input<Buffer<uint32_t>>("tile_count", 1);
    }
    if (residual) {
        residual_input = generator.add_input<Buffer<>>("residual_input", type, groups_apart > 0 ? 5 : 4);
    }
    output = generator.add_output<Buffer<>>("output", type, groups_apart > 0 ? 5 : 4);
}

void VirtualPixels::define_output(const Sums &sums, const SumAt &sum_at) {
    if (virtual_tile == 0 && (tile_h % scale_h != 0 || tile_w % scale_w != 0)) {
        throw CompileError("tiles of " + std::to_string(tile_h) + " x " + std::to_string(tile_w) +
                           " output pixels: each extent must be a multiple of the operator's stride or scale, " +
                           std::to_string(scale_h) + " x " + std::to_string(scale_w) + ".\n");
    }
    (*output)(at_channel<Var>(x, y, n)) = undef(stored_type(dtype));
    if (on_gpu()) {
        add_stage({"listed", 0, num_tiles, false}, sums, sum_at);
    } else {
        add_stage({"interior", 0, num_interior, true}, sums, sum_at);
        add_stage({"border", num_interior, num_tiles, false}, sums, sum_at);
    }
}

void VirtualPixels::constrain_buffers(int in_channels, int out_channels) {
    input.dim(0).set_bounds(0, in_channels).set_stride(1);
    input.dim(3).set_min(0);
    for (int i = 1; i < 4; i++) {
        output->dim(i).set_min(0);
    }
    const int group_channels = groups_apart > 0 ? out_channels / groups_apart : out_channels;
    output->dim(0).set_bounds(0, group_channels).set_stride(1);
    if (groups_apart > 0) {
        output->dim(4).set_bounds(0, groups_apart).set_stride(group_channels);
    }
    if (residual) {
        residual_input->dim(0).set_bounds(0, group_channels).set_stride(1);
        if (groups_apart > 0) {
            residual_input->dim(4).set_bounds(0, groups_apart).set_stride(group_channels);
        }
        for (int i = 1; i < 4; i++) {
            residual_input->dim(i).set_bounds(0, output->dim(i).extent());
        }
    }
    tiles.dim(0).set_min(0);
    tiles.dim(1).set_bounds(0, 2);
    for (int i = 0; i < 3; i++) {
        bits.dim(i).set_min(0);
    }
    if (on_gpu()) {
        tile_count->dim(0).set_bounds(0, 1);
        // A GPU loads 16 bytes at once only from addresses known to be multiples of 16.
        align_pixels(input, in_channels);
        align_pixels(*output, out_channels);
        if (residual) {
            align_pixels(*residual_input, out_channels);
        }
    }
}

void VirtualPixels::estimate_input(int channels, int width, int height) {
    input.set_estimates({{0, channels}, {0, width}, {0, height}, {0, 1}});
}

void VirtualPixels::estimate_output(int channels, int width, int height) {
    const int pixels = width * height;
    tiles.set_estimates({{0, pixels}, {0, 2}});
    bits.set_estimates({{0, (width + 31) / 32}, {0, height}, {0, 1}});
    num_interior.set_estimate(pixels / 2);
    num_tiles.set_estimate(pixels / 2);
    threads.set_estimate(2);
    store_tiles.set_estimate(false);
    slope.set_estimate(DISTILE_DEFAULT_SLOPE);
    if (on_gpu()) {
        tile_count->set_estimates({{0, 1}});
    }
    Region estimates = {{0, channels}, {0, width}, {0, height}, {0, 1}};
    if (groups_apart > 0) {
        estimates[0] = {0, channels / groups_apart};
        estimates.emplace_back(0, groups_apart);
    }
    if (residual) {
        residual_input->set_estimates(estimates);
    }
    output->set_estimates(estimates);
}

/** The length of the list, on a GPU. Only the device may read it, but the host computes bounds, and the bounds of a
 * load from a constant index are the load itself. So we make the index depend on the pixel's index. It is always 0,
 * because the runtime launches fewer than 2^30 virtual pixels at once, but Halide cannot know that. */
Expr VirtualPixels::listed_tiles(const Expr &index) {
    return (*tile_count)(index / (1 << 30));
}

Tuple VirtualPixels::pack(const Pixel &pixel) {
    return Tuple(cast<uint32_t>(pixel.x) | cast<uint32_t>(pixel.y) << 16, cast<uint32_t>(pixel.n));
}

VirtualPixels::Pixel VirtualPixels::unpack(const Tuple &words) {
    Pixel pixel;
    pixel.x = cast<int>(words[0] & 0xffff);
    pixel.y = cast<int>(words[0] >> 16);
    pixel.n = cast<int>(words[1]);
    pixel.exists = cast<bool>(true);
    return pixel;
}

VirtualPixels::Pixel VirtualPixels::origin_of(const Expr &index, const Expr &last) {
    // Schedules round a stage's domain up to whole register tiles. Beyond its end we repeat the stage's last tile,
    // because the next one in the list may not be readable in place. On a GPU only the device knows the length of the
    // list. The promise keeps that number out of the bounds that the host computes. (Nothing runs for an empty list,
    // but Halide still checks the access.)
    const Expr listed = on_gpu() ? cast<int>(listed_tiles(index)) : last;
    const Expr tile = unsafe_promise_clamped(min(index, listed - 1), 0, tiles.dim(0).max());
    Expr xy = tiles(tile, 0);
    Expr last_x = output->dim(1).extent() - 1, last_y = output->dim(2).extent() - 1;
    Pixel pixel;
    // The promises hold because the runtime lists only valid origins and images.
    pixel.x = unsafe_promise_clamped(cast<int>(xy & 0xffff), 0, last_x);
    pixel.y = unsafe_promise_clamped(cast<int>(xy >> 16), 0, last_y);
    pixel.n = unsafe_promise_clamped(cast<int>(tiles(tile, 1)), 0, output->dim(3).extent() - 1);
    pixel.exists = cast<bool>(true);
    return pixel;
}

VirtualPixels::Pixel VirtualPixels::pixel_at(const Expr &index, const Expr &last) {
    Pixel pixel = origin_of(index / pixels_per_tile(), last);
    const Expr last_x = (output->dim(1).extent() - 1) / scale_w, last_y = (output->dim(2).extent() - 1) / scale_h;
    if (has_phases()) {
        pixel.x = pixel.x / scale_w;
        pixel.y = pixel.y / scale_h;
    }
    if (tile_columns() > 1) {
        Expr virtual_x = pixel.x + index % tile_columns();
        pixel.exists = pixel.exists && virtual_x <= last_x;
        pixel.x = min(virtual_x, last_x);
    }
    if (tile_rows() > 1) {
        Expr virtual_y = pixel.y + (index / tile_columns()) % tile_rows();
        pixel.exists = pixel.exists && virtual_y <= last_y;
        pixel.y = min(virtual_y, last_y);
    }
    return pixel;
}

VirtualPixels::Pixel VirtualPixels::output_pixel(const Pixel &pixel, const Expr &phase_index) {
    Pixel result = pixel;
    const Expr last_x = output->dim(1).extent() - 1, last_y = output->dim(2).extent() - 1;
    if (scale_w > 1) {
        Expr output_x = pixel.x * scale_w + phase_index % scale_w;
        result.exists = result.exists && output_x <= last_x;
        result.x = min(output_x, last_x);
    }
    if (scale_h > 1) {
        Expr output_y = pixel.y * scale_h + phase_index / scale_w;
        result.exists = result.exists && output_y <= last_y;
        result.y = min(output_y, last_y);
    }
    return result;
}

Expr VirtualPixels::is_stored(const Pixel &pixel, const Expr &index) {
    Expr word = bits(pixel.x / 32, pixel.y, pixel.n);
    Expr active = ((word >> cast<uint32_t>(pixel.x % 32)) & 1) != 0;
    Expr stored = pixel.exists && (store_tiles || active);
    if (on_gpu()) {
        // Unsigned, because otherwise Halide would solve for the domain on the host and shrink it.
        stored = cast<uint32_t>(index / pixels_per_tile()) < listed_tiles(index) && stored;
    }
    return stored;
}

Expr VirtualPixels::load_input(const Expr &channel, const Expr &in_x, const Expr &in_y, const Expr &image,
                               bool in_place) {
    const Expr at[2] = {in_x, in_y};
    Expr inside = cast<bool>(true);
    Expr legal[2];
    for (int d = 0; d < 2; d++) {
        Expr first = input.dim(d + 1).min(), last = input.dim(d + 1).max();
        inside = inside && at[d] >= first && at[d] <= last;
        // Halide evaluates both sides of a select, so a phantom read needs a legal address too.
        legal[d] = in_place ? unsafe_promise_clamped(at[d], first, last) : clamp(at[d], first, last);
    }
    const Expr stored = input(channel, legal[0], legal[1], unsafe_promise_clamped(image, 0, input.dim(3).extent() - 1));
    return conversion.to_float32(in_place ? stored : select(inside, stored, cast(stored.type(), 0)), input_dtype());
}

void VirtualPixels::add_stage(const Stage &stage, const Sums &sums, const SumAt &sum_at) {
    Func accumulator = sums(stage);
    const Expr begin = stage.first * pixels_per_tile(), extent = (stage.last - stage.first) * pixels_per_tile();
    const std::string pixels = stage.name + "_pixels";
    RDom domain = has_phases() ? RDom(begin, extent, 0, scale_h * scale_w, pixels) : RDom(begin, extent, pixels);
    const Expr phase_index = has_phases() ? Expr(domain.y) : Expr(0);
    Pixel pixel = output_pixel(pixel_at(domain.x, stage.last), phase_index);
    domain.where(is_stored(pixel, domain.x));
    std::vector<Expr> place = {co, domain.x};
    if (has_phases()) {
        place.push_back(domain.y);
    } else if (groups_apart > 0) {
        place.push_back(group);
    }
    const std::vector<Expr> at = at_channel<Expr>(pixel.x, pixel.y, pixel.n);
    Expr result = sum_at(accumulator, place);
    if (residual) {
        result += conversion.to_float32((*residual_input)(at), dtype);
    }
    (*output)(at) = conversion.from_float32(apply_epilogue(epilogue, result, slope), dtype);
}

}  // namespace distile
