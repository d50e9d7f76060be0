#include "cuda_mask.h"
#include "pixel_update.h"
#include <algorithm>
#include <distile/cuda_mask_algebra.h>

using namespace distile;

namespace {

LaunchGrid grid_of(uint64_t threads, uint32_t threads_of_block = mask_threads) {
    const uint64_t blocks = (threads + threads_of_block - 1) / threads_of_block;
    return {static_cast<uint32_t>(blocks), 1, threads_of_block};
}

/** The axis of a window as rows of bits go through it: either a convolution, or what an upsampling by the stride comes
 * to before and behind one with stride 1. */
struct Passage {
    Passage(const WindowAxis &given, bool scatters_, bool upsampled_, int32_t in_extent)
        : scatters(scatters_), upsampled(upsampled_), inputs(upsampled_ ? in_extent * given.stride : in_extent),
          axis(clip(given, inputs)) {
    }

    /** Places of inputs, with the padding before them. */
    int32_t places() const {
        return axis.pad + inputs;
    }
    int32_t span() const {
        return (axis.kernel - 1) * axis.dilation;
    }

    /** Whether bits are put a stride apart at first, rather than taken so at the end. */
    bool moves_apart() const {
        return scatters != upsampled;
    }

    bool scatters;  ///< From outputs to inputs.
    bool upsampled;
    int32_t inputs;  ///< After the upsampling.
    WindowAxis axis;
};

BitColumn column_of(const Passage &passage) {
    const auto &[kernel, stride, pad, dilation] = passage.axis;
    const bool apart = passage.moves_apart();
    BitColumn column{};
    column.taps = kernel;
    column.dilation = dilation;
    column.scale = apart ? 1 : stride;
    column.start = passage.scatters ? pad - passage.span() : -pad;
    column.before = passage.upsampled && !passage.scatters ? stride - 1 : 0;
    column.behind = passage.upsampled && passage.scatters ? stride - 1 : 0;
    column.divisor = make_divisor(apart ? static_cast<uint32_t>(stride) : 1);
    return column;
}

BitRow row_of(const Passage &passage, int32_t from_width, int32_t to_width) {
    const auto &[kernel, stride, pad, dilation] = passage.axis;
    const bool apart = passage.moves_apart();
    BitRow row{};
    row.spread = apart ? stride : 1;
    row.take = apart ? 1 : stride;
    row.shift = passage.scatters ? -pad : pad;
    row.words = (passage.places() + 31) / 32;
    row.from_bits =
        std::min(from_width, (passage.scatters ? passage.places() - 1 : passage.inputs - 1) / row.spread + 1);
    row.to_bits = std::min(to_width, (passage.scatters ? passage.inputs - 1 : passage.places() - 1) / row.take + 1);
    const auto add_up = [&](int64_t distance) { row.up[row.num_up++] = static_cast<int32_t>(distance); };
    const auto add_down = [&](int64_t distance) { row.down[row.num_down++] = static_cast<int32_t>(distance); };
    const WindowAxis repetition = {passage.upsampled ? stride : 1, 1, 0, 1};
    if (passage.scatters) {
        for_each_distance(passage.axis, add_up);
        for_each_distance(repetition, add_down);
    } else {
        for_each_distance(repetition, add_up);
        for_each_distance(passage.axis, add_down);
    }
    return row;
}

distile_status transfer(const char *call, distile_cuda_mask *result, const distile_cuda_mask *from,
                        const distile_window *given, int32_t height, int32_t width, Direction direction) {
    const distile_status status = check_transfer(call, result, from, given, direction, height, width);
    if (status != DISTILE_OK) {
        return status;
    }
    return guarded_cuda(result->cuda, [&] {
        distile_cuda &cuda = result->cuda;
        const bool to_input = direction == Direction::ToInput;
        const bool upsampled = given->kind == DISTILE_WINDOW_UPSAMPLED;
        // A transposed convolution is the convolution from its output to its input.
        const bool scatters = to_input != (given->kind == DISTILE_WINDOW_TRANSPOSED);
        const Window window = window_of(*given);
        const MaskShape to = {from->batch, height, width};
        DeviceBits source = from->bits;
        const Passage down(window.y, scatters, upsampled, scatters ? height : source.height);
        const Passage along(window.x, scatters, upsampled, scatters ? width : source.width);
        if (from == result) {
            const size_t bytes = from->num_words() * sizeof(uint32_t);
            cuda.operand->reserve(bytes);
            cuda.check(cuda.driver.cuMemcpyDtoDAsync(cuda.operand->address(),
                                                     reinterpret_cast<CUdeviceptr>(source.words), bytes, cuda.stream),
                       "cuMemcpyDtoDAsync");
            source.words = cuda.operand->as<uint32_t>();
        }
        BitTransfer transfer{};
        transfer.from = source;
        transfer.column = column_of(down);
        transfer.row = row_of(along, source.width, width);
        transfer.height = make_divisor(static_cast<uint32_t>(height));
        transfer.num_rows = static_cast<uint32_t>(int64_t{to.batch} * height);
        transfer.words_per_row = (width + 31) / 32;
        // Short rows have small teams, so that no thread of them is idle.
        transfer.team = 1;
        while (2 * transfer.team <= std::min(static_cast<uint32_t>(transfer.row.words), mask_threads)) {
            transfer.team *= 2;
        }
        const uint32_t teams = mask_threads / transfer.team;
        const auto shared = static_cast<uint32_t>(sizeof(uint32_t) * 2 * teams * transfer.row.words);
        result->set_words(to, [&](uint32_t *words, const TileGrids &grids, uint32_t num_grids) {
            const LaunchGrid launch = {(transfer.num_rows + teams - 1) / teams, 1, mask_threads, shared};
            cuda.launch(cuda.transfer_bits, cuda.stream, launch, transfer, grids, num_grids, words);
        });
        return DISTILE_OK;
    });
}

distile_status combine(const char *call, distile_cuda_mask *result, const distile_cuda_mask *a,
                       const distile_cuda_mask *b, Combination how) {
    const distile_status status = check_combination(call, result, a, b);
    if (status != DISTILE_OK) {
        return status;
    }
    return guarded_cuda(result->cuda, [&] {
        const DeviceBits &bits = a->bits;
        const BitCombination combination = {bits.words,
                                            b->bits.words,
                                            how,
                                            make_divisor(static_cast<uint32_t>(bits.words_per_row)),
                                            a->num_words(),
                                            ~0u >> (32 * bits.words_per_row - bits.width)};
        result->set_words(a->shape(), [&](uint32_t *words, const TileGrids &grids, uint32_t num_grids) {
            distile_cuda &cuda = result->cuda;
            cuda.launch(cuda.combine_bits, cuda.stream, grid_of(combination.num_words), combination, grids, num_grids,
                        words);
        });
        return DISTILE_OK;
    });
}

/** Whether rows can be read in vectors, which must not reach from one pixel into the next unless these are packed. */
bool has_vectors(const distile_tensor &tensor) {
    constexpr int32_t lanes = vector_lanes;
    const bool packed = tensor.stride_w == tensor.channels;
    return reinterpret_cast<uintptr_t>(tensor.data) % (lanes * sizeof(float)) == 0 && tensor.stride_h % lanes == 0 &&
           (tensor.batch == 1 || tensor.stride_n % lanes == 0) &&
           (packed || (tensor.stride_w % lanes == 0 && tensor.channels % lanes == 0));
}

Elements elements_of(const distile_tensor &tensor) {
    return {static_cast<const float *>(tensor.data), tensor.stride_n, tensor.stride_h, tensor.stride_w};
}

void compare(distile_cuda_mask &result, const distile_tensor &a, const distile_tensor &b, float threshold) {
    result.set_words({a.batch, a.height, a.width}, [&](uint32_t *words, const TileGrids &grids, uint32_t num_grids) {
        const int32_t words_per_row = (a.width + 31) / 32;
        const bool packed = a.stride_w == a.channels && b.stride_w == b.channels;
        const bool aligned = has_vectors(a) && has_vectors(b);
        const bool pixels = aligned && packed && a.channels <= most_channels && a.width % vector_lanes == 0;
        // Of one or two channels a vector would lie in more than two pixels.
        const bool vectors = aligned && (packed ? a.channels > 2 : a.channels % vector_lanes == 0);
        // As many threads as have some vectors each.
        const int64_t loads = 32 * int64_t{a.channels} / (vectors ? vector_lanes : 1);
        uint32_t team = pixels ? 8 : 32;
        while (!pixels && team < mask_threads && 16 * int64_t{team} <= loads) {
            team *= 2;
        }
        const Comparison comparison = {elements_of(a),
                                       elements_of(b),
                                       make_divisor(static_cast<uint32_t>(words_per_row)),
                                       make_divisor(static_cast<uint32_t>(a.height)),
                                       make_divisor(static_cast<uint32_t>(a.channels)),
                                       static_cast<uint32_t>(int64_t{a.batch} * a.height * words_per_row),
                                       team,
                                       a.width,
                                       threshold};
        distile_cuda &cuda = result.cuda;
        CUfunction function = pixels ? cuda.compare_pixels[a.channels - 1] : vectors ? cuda.compare_4 : cuda.compare_1;
        const LaunchGrid grid = grid_of(uint64_t{comparison.num_words} * team, pixels ? pixel_threads : mask_threads);
        cuda.launch(function, cuda.stream, grid, comparison, grids, num_grids, words);
    });
}

}  // namespace

extern "C" {

distile_status distile_cuda_mask_needed_input(distile_cuda_mask *result, distile_cuda_mask *output,
                                              const distile_window *window, int32_t in_height, int32_t in_width) {
    return transfer("distile_cuda_mask_needed_input", result, output, window, in_height, in_width, Direction::ToInput);
}

distile_status distile_cuda_mask_affected_output(distile_cuda_mask *result, distile_cuda_mask *input,
                                                 const distile_window *window, int32_t out_height, int32_t out_width) {
    return transfer("distile_cuda_mask_affected_output", result, input, window, out_height, out_width,
                    Direction::ToOutput);
}

distile_status distile_cuda_mask_dilate(distile_cuda_mask *result, distile_cuda_mask *mask, int32_t radius_h,
                                        int32_t radius_w) {
    constexpr const char *call = "distile_cuda_mask_dilate";
    distile_window window{};
    distile_status status = check_masks<distile_cuda_mask>(call, {mask}, result);
    if (status == DISTILE_OK) {
        status = make_dilation(result->host(), call, radius_h, radius_w, window);
    }
    return status != DISTILE_OK
               ? status
               : transfer(call, result, mask, &window, mask->bits.height, mask->bits.width, Direction::ToOutput);
}

distile_status distile_cuda_mask_pool(distile_cuda_mask *result, distile_cuda_mask *mask, int32_t factor_h,
                                      int32_t factor_w) {
    constexpr const char *call = "distile_cuda_mask_pool";
    distile_window window{};
    MaskShape pooled{};
    distile_status status = check_masks<distile_cuda_mask>(call, {mask}, result);
    if (status == DISTILE_OK) {
        pooled = mask->shape();
        status = make_pooling(result->host(), call, factor_h, factor_w, window, pooled);
    }
    return status != DISTILE_OK
               ? status
               : transfer(call, result, mask, &window, pooled.height, pooled.width, Direction::ToOutput);
}

distile_status distile_cuda_mask_unite(distile_cuda_mask *result, distile_cuda_mask *a, distile_cuda_mask *b) {
    return combine("distile_cuda_mask_unite", result, a, b, Combination::Unite);
}

distile_status distile_cuda_mask_intersect(distile_cuda_mask *result, distile_cuda_mask *a, distile_cuda_mask *b) {
    return combine("distile_cuda_mask_intersect", result, a, b, Combination::Intersect);
}

distile_status distile_cuda_mask_subtract(distile_cuda_mask *result, distile_cuda_mask *a, distile_cuda_mask *b) {
    return combine("distile_cuda_mask_subtract", result, a, b, Combination::Subtract);
}

distile_status distile_cuda_mask_invert(distile_cuda_mask *result, distile_cuda_mask *a) {
    return combine("distile_cuda_mask_invert", result, a, a, Combination::Invert);
}

distile_status distile_cuda_mask_set_difference(distile_cuda_mask *result, const distile_tensor *a,
                                                const distile_tensor *b, float threshold) {
    constexpr const char *call = "distile_cuda_mask_set_difference";
    if (!result) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    distile_status status = check_difference(result->host(), call, a, b, threshold);
    if (status == DISTILE_OK) {
        status = result->check_shape(call, {a->batch, a->height, a->width});
    }
    if (status != DISTILE_OK) {
        return status;
    }
    return guarded_cuda(result->cuda, [&] {
        result->cuda.check_pointer(a->data, call, "first tensor");
        result->cuda.check_pointer(b->data, call, "second tensor");
        compare(*result, *a, *b, threshold);
        return DISTILE_OK;
    });
}

}  // extern "C"
