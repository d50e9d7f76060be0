// Pooling, combinations and group norm of active pixels, and masks from scores, on a GPU.
#include "runtime/base/types.h"
#include "runtime/cuda/cuda_mask.h"
#include "runtime/cuda/kernels/layers.h"
#include "runtime/cuda/pixel_update.h"
#include <algorithm>
#include <initializer_list>
#include <utility>

namespace distile {

namespace {

PixelList list_of(const TileList &list) {
    return {list.xy, list.image, list.device_count};
}

/** How a kernel splits pixels: into vectors if all tensors allow it, one vector per lane of a team. */
struct VectorSplit {
    explicit VectorSplit(std::initializer_list<const distile_tensor *> tensors)
        : in_vectors(std::all_of(tensors.begin(), tensors.end(),
                                 [](const distile_tensor *tensor) { return is_in_units(*tensor, layer_bytes); })) {
        const distile_tensor &tensor = **tensors.begin();
        constexpr uint32_t most_lanes = 32;
        const auto channels = static_cast<uint32_t>(tensor.channels);
        vectors = in_vectors ? channels / (layer_bytes / static_cast<uint32_t>(element_bytes(tensor.dtype))) : channels;
        while (team < std::min(vectors, most_lanes)) {
            team *= 2;
        }
    }

    bool in_vectors;
    uint32_t vectors = 1, team = 1;
};

}  // namespace

template<typename Pixels> void CudaDevice::launch_pixels(const LibraryKernels::PixelKernels &functions, bool in_vectors,
                                                         const TileList &list, const Pixels &pixels) const {
    LaunchGrid grid = grid_of(static_cast<uint64_t>(list.capacity) * pixels.team);
    grid.x = std::min(grid.x, most_blocks());
    grid.early = kernels->masks_wait;
    launch(in_vectors ? functions.vectors : functions.elements, caller_stream, grid, pixels);
}

void CudaDevice::pool(const Pooling &pooling) {
    const distile_tensor &input = pooling.input, &output = pooling.output;
    const distile_window &window = pooling.window;
    check_pointer(input.data, element_bytes(input.dtype), "input");
    check_pointer(output.data, element_bytes(output.dtype), "output");
    const TileList list = pooling.mask.list({1, 1}, {});
    const VectorSplit split{&output, &input};
    PooledPixels pixels{};
    pixels.from = view_of(input);
    pixels.to = view_of(output);
    pixels.list = list_of(list);
    pixels.rows = {window.kernel_h, window.stride_h, window.dilation_h, window.pad_top, input.height};
    pixels.columns = {window.kernel_w, window.stride_w, window.dilation_w, window.pad_left, input.width};
    pixels.vectors = split.vectors;
    pixels.team = split.team;
    pixels.largest = pooling.largest ? 1 : 0;
    pixels.count_padding = pooling.count_padding ? 1 : 0;
    launch_pixels(kernels->pool(output.dtype), split.in_vectors, list, pixels);
    if (pooling.zero) {
        update_pixels(&pooling.mask, output, nullptr, true);
    }
}

void CudaDevice::combine(const TensorCombination &combination) {
    const distile_tensor &input = combination.input, &other = combination.other, &output = combination.output;
    check_pointer(input.data, element_bytes(input.dtype), "input");
    check_pointer(other.data, element_bytes(other.dtype), "second operand");
    check_pointer(output.data, element_bytes(output.dtype), "output");
    const TileList list = combination.mask.list({1, 1}, {});
    const VectorSplit split{&output, &input, &other};
    CombinedPixels pixels{};
    pixels.from = view_of(input);
    pixels.other = view_of(other);
    pixels.to = view_of(output);
    pixels.list = list_of(list);
    pixels.vectors = split.vectors;
    pixels.team = split.team;
    pixels.how = combination.how;
    pixels.other_activation = combination.other_activation;
    pixels.activation = combination.activation;
    launch_pixels(kernels->combine(output.dtype), split.in_vectors, list, pixels);
    if (combination.zero) {
        update_pixels(&combination.mask, output, nullptr, true);
    }
}

SummedPixels CudaDevice::sum_pixels(const distile_tensor &tensor, distile_mask *mask, bool largest,
                                    size_t bytes_behind) {
    const auto images = static_cast<uint32_t>(tensor.batch);
    SummedPixels sums{};
    sums.from = view_of(tensor);
    if (mask) {
        sums.xy = mask->list({1, 1}, {}).xy;
        sums.lengths = mask->cumulative_lengths();
    }
    sums.width = make_divisor(static_cast<uint32_t>(tensor.width));
    sums.pixels = static_cast<uint32_t>(int64_t{tensor.height} * tensor.width);
    sums.channels = static_cast<uint32_t>(tensor.channels);
    sums.largest = largest ? 1 : 0;
    // Enough blocks to fill the chip, each with a few pixels for every thread, and few to merge.
    constexpr uint32_t pixels_of_thread = 8, blocks_to_merge = 128;
    const uint32_t chunks = (sums.channels + sum_lanes - 1) / sum_lanes;
    sums.blocks = std::clamp(sums.pixels / (sum_rows * pixels_of_thread), 1u,
                             std::clamp(most_blocks() / (images * chunks), 1u, blocks_to_merge));
    const ScratchMemory memory =
        take_scratch(size_t{images} * sums.blocks * sums.channels * sizeof(Moments) + bytes_behind);
    sums.moments = static_cast<Moments *>(memory.get());
    LaunchGrid grid{sums.blocks, images};
    grid.z = chunks;
    launch(kernels->sum_pixels(tensor.dtype), caller_stream, grid, sums);
    return sums;
}

void CudaDevice::pool_globally(const GlobalPooling &pooling) {
    const distile_tensor &input = pooling.input, &output = pooling.output;
    check_pointer(input.data, element_bytes(input.dtype), "input");
    check_pointer(output.data, element_bytes(output.dtype), "output");
    const SummedPixels sums = sum_pixels(input, pooling.mask, pooling.largest);
    const MergedMoments merged = {sums.moments, sums.blocks, sums.channels, sums.largest, output.data, output.stride_n};
    LaunchGrid grid = grid_of(sums.channels);
    grid.y = static_cast<uint32_t>(output.batch);
    launch(kernels->merge_pixels(output.dtype), caller_stream, grid, merged);
}

void CudaDevice::merge_groups(const SummedPixels &sums, const GroupStatistics &statistics) const {
    const auto groups = static_cast<uint32_t>(statistics.groups);
    const MergedGroups merged = {sums.moments,           sums.blocks,     sums.channels,
                                 sums.channels / groups, statistics.mean, statistics.variance};
    launch(kernels->merge_groups, caller_stream, {groups, static_cast<uint32_t>(statistics.input.batch)}, merged);
}

void CudaDevice::find_statistics(const GroupStatistics &statistics) {
    const distile_tensor &input = statistics.input;
    check_pointer(input.data, element_bytes(input.dtype), "input");
    check_pointer(statistics.mean, sizeof(float), "mean");
    check_pointer(statistics.variance, sizeof(float), "variance");
    merge_groups(sum_pixels(input, statistics.mask, false), statistics);
}

void CudaDevice::normalize_groups(const GroupNormalization &normalization) {
    const distile_tensor &input = normalization.input, &output = normalization.output;
    check_pointer(input.data, element_bytes(input.dtype), "input");
    check_pointer(output.data, element_bytes(output.dtype), "output");
    for (const auto &[vector, name] : {std::pair(normalization.mean, "mean"),
                                       {normalization.variance, "variance"},
                                       {normalization.gamma, "gamma"},
                                       {normalization.beta, "beta"}}) {
        if (vector) {
            check_pointer(vector, sizeof(float), name);
        }
    }
    const TileList list = normalization.mask.list({1, 1}, {});
    const VectorSplit split{&output, &input};
    const auto groups = static_cast<uint32_t>(normalization.groups);
    NormalizedGroups pixels{};
    pixels.from = view_of(input);
    pixels.to = view_of(output);
    pixels.list = list_of(list);
    pixels.vectors = split.vectors;
    pixels.team = split.team;
    pixels.mean = normalization.mean;
    pixels.variance = normalization.variance;
    pixels.gamma = normalization.gamma;
    pixels.beta = normalization.beta;
    pixels.stride = normalization.shared ? 0 : groups;
    pixels.group = make_divisor(static_cast<uint32_t>(output.channels) / groups);
    pixels.epsilon = normalization.epsilon;
    pixels.activation = normalization.activation;
    if (!pixels.mean) {
        const size_t statistics = static_cast<size_t>(output.batch) * groups;
        const SummedPixels sums = sum_pixels(input, &normalization.mask, false, 2 * statistics * sizeof(float));
        Moments *const end = sums.moments + static_cast<size_t>(output.batch) * sums.blocks * sums.channels;
        auto *const mean = reinterpret_cast<float *>(end);
        merge_groups(sums, {input, &normalization.mask, normalization.groups, mean, mean + statistics});
        pixels.mean = mean;
        pixels.variance = mean + statistics;
    }
    launch_pixels(kernels->normalize_groups(output.dtype), split.in_vectors, list, pixels);
    if (normalization.zero) {
        update_pixels(&normalization.mask, output, nullptr, true);
    }
}

void CudaMask::set_scores(const distile_tensor &tensor, const Scores &scores) {
    device_.check_pointer(tensor.data, element_bytes(tensor.dtype), "tensor");
    if (scores.weights) {
        device_.check_pointer(scores.weights, sizeof(float), "weights");
    }
    const int32_t words_per_row = (tensor.width + 31) / 32;
    // A warp reads the channels of a pixel side by side, unless they are few.
    constexpr int32_t few = 8;
    const ScoredPixels pixels = {view_of(tensor),
                                 make_divisor(static_cast<uint32_t>(words_per_row)),
                                 make_divisor(static_cast<uint32_t>(tensor.height)),
                                 static_cast<uint32_t>(int64_t{tensor.batch} * tensor.height * words_per_row),
                                 static_cast<uint32_t>(tensor.channels),
                                 tensor.width,
                                 tensor.channels <= few ? 1 : 0,
                                 scores.weights,
                                 scores.bias,
                                 scores.threshold,
                                 take_mirror()};
    const bool in_vectors =
        is_in_units(tensor, layer_bytes) && reinterpret_cast<uintptr_t>(scores.weights) % layer_bytes == 0;
    const LibraryKernels::PixelKernels &functions = device_.kernels->score_pixels(tensor.dtype);
    set_words({tensor.batch, tensor.height, tensor.width}, [&](uint32_t *words, Listing &) {
        launch(in_vectors ? functions.vectors : functions.elements,
               pixels.by_lane != 0 ? grid_of(uint64_t{32} * pixels.num_words) : LaunchGrid{pixels.num_words}, pixels,
               words);
    });
}

}  // namespace distile
