// Pooling, combinations and group norm of active pixels, and masks from scores, on an OpenCL device.
#include "runtime/opencl/kernel_names.h"
#include "runtime/opencl/opencl_mask.h"
#include <algorithm>
#include <distile/layers.h>
#include <tuple>

namespace distile {

namespace {

/** The most rows of a grid that loop. */
constexpr int64_t most_rows = 4096;

/** Equals the struct of this name in kernels.cl. */
struct Window {
    int32_t height, width;
    int32_t kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left;
    int32_t largest, count_padding;
};

struct Moments {
    float count, mean, squares;
};

constexpr KernelNames pool_names("pool"), combine_names("combine"), sum_names("sum_pixels"),
    merge_names("merge_pixels"), normalize_names("normalize_groups"), score_names("score_pixels");

/** An item for every channel of listed pixels. */
ItemGrid items_of(const distile_tensor &output, const TileList &list) {
    return items_for(static_cast<uint64_t>(output.channels), static_cast<uint64_t>(std::min(list.capacity, most_rows)));
}

}  // namespace

void OpenClDevice::pool(const Pooling &pooling) {
    const distile_tensor &input = pooling.input, &output = pooling.output;
    const distile_window &of = pooling.window;
    check_view(input, "input");
    check_view(output, "output");
    const TileList list = pooling.mask.list({1, 1}, {});
    const Window window = {input.height,
                           input.width,
                           of.kernel_h,
                           of.kernel_w,
                           of.stride_h,
                           of.stride_w,
                           of.dilation_h,
                           of.dilation_w,
                           of.pad_top,
                           of.pad_left,
                           pooling.largest ? 1 : 0,
                           pooling.count_padding ? 1 : 0};
    launch(pool_names.of(output.dtype), items_of(output, list), input.data, cl_long{input.stride_n},
           cl_long{input.stride_h}, cl_long{input.stride_w}, output.data, cl_long{output.stride_n},
           cl_long{output.stride_h}, cl_long{output.stride_w}, list.xy, static_cast<uint32_t>(list.capacity),
           list.device_count, static_cast<uint32_t>(output.channels), window);
    if (pooling.zero) {
        update_pixels(&pooling.mask, output, nullptr, true);
    }
}

void OpenClDevice::combine(const TensorCombination &combination) {
    const distile_tensor &input = combination.input, &other = combination.other, &output = combination.output;
    check_view(input, "input");
    check_view(other, "second operand");
    check_view(output, "output");
    const TileList list = combination.mask.list({1, 1}, {});
    launch(combine_names.of(output.dtype), items_of(output, list), input.data, cl_long{input.stride_n},
           cl_long{input.stride_h}, cl_long{input.stride_w}, other.data, cl_long{other.stride_n},
           cl_long{other.stride_h}, cl_long{other.stride_w}, output.data, cl_long{output.stride_n},
           cl_long{output.stride_h}, cl_long{output.stride_w}, list.xy, static_cast<uint32_t>(list.capacity),
           list.device_count, static_cast<uint32_t>(output.channels), static_cast<int32_t>(combination.how),
           static_cast<int32_t>(combination.other_activation.function), combination.other_activation.slope,
           static_cast<int32_t>(combination.activation.function), combination.activation.slope);
    if (combination.zero) {
        update_pixels(&combination.mask, output, nullptr, true);
    }
}

OpenClDevice::PixelSums OpenClDevice::sum_pixels(const distile_tensor &tensor, distile_mask *mask, bool largest,
                                                 uint64_t bytes_behind) {
    const auto images = static_cast<uint64_t>(tensor.batch), channels = static_cast<uint64_t>(tensor.channels);
    const auto pixels = static_cast<uint64_t>(int64_t{tensor.height} * tensor.width);
    // Enough groups to fill the device, each with a few pixels, and few blocks to merge.
    constexpr uint64_t pixels_of_item = 16, blocks_to_merge = 64;
    const uint64_t blocks = std::clamp(pixels / pixels_of_item, uint64_t{1}, blocks_to_merge);
    const uint64_t bytes = images * blocks * channels * sizeof(Moments);
    const ScratchMemory memory = take_scratch(bytes + bytes_behind);
    ItemGrid grid = items_for(channels, blocks);
    grid.items[2] = images;
    launch(sum_names.of(tensor.dtype), grid, tensor.data, cl_long{tensor.stride_n}, cl_long{tensor.stride_h},
           cl_long{tensor.stride_w}, mask ? mask->list({1, 1}, {}).xy : nullptr,
           mask ? mask->cumulative_lengths() : nullptr, static_cast<uint32_t>(pixels),
           static_cast<uint32_t>(tensor.width), static_cast<uint32_t>(channels), largest ? 1 : 0,
           static_cast<const void *>(memory.get()));
    return {memory.get(), static_cast<uint32_t>(blocks), static_cast<char *>(memory.get()) + bytes};
}

void OpenClDevice::pool_globally(const GlobalPooling &pooling) {
    const distile_tensor &input = pooling.input, &output = pooling.output;
    check_view(input, "input");
    check_view(output, "output");
    const PixelSums sums = sum_pixels(input, pooling.mask, pooling.largest);
    const auto channels = static_cast<uint64_t>(output.channels);
    launch(merge_names.of(output.dtype), items_for(channels, static_cast<uint64_t>(output.batch)), sums.moments,
           sums.blocks, static_cast<uint32_t>(channels), pooling.largest ? 1 : 0, output.data,
           cl_long{output.stride_n});
}

void OpenClDevice::merge_groups(const PixelSums &sums, const GroupStatistics &statistics) const {
    const auto groups = static_cast<uint64_t>(statistics.groups);
    const auto channels = static_cast<uint32_t>(statistics.input.channels);
    launch("distile_merge_groups", items_for(groups * group_items, static_cast<uint64_t>(statistics.input.batch)),
           sums.moments, sums.blocks, channels, channels / static_cast<uint32_t>(groups), statistics.mean,
           statistics.variance);
}

void OpenClDevice::find_statistics(const GroupStatistics &statistics) {
    check_view(statistics.input, "input");
    const auto bytes =
        static_cast<uint64_t>(statistics.input.batch) * static_cast<uint64_t>(statistics.groups) * sizeof(float);
    check_range(statistics.mean, bytes, sizeof(float), "mean");
    check_range(statistics.variance, bytes, sizeof(float), "variance");
    merge_groups(sum_pixels(statistics.input, statistics.mask, false), statistics);
}

void OpenClDevice::normalize_groups(const GroupNormalization &normalization) {
    const distile_tensor &input = normalization.input, &output = normalization.output;
    check_view(input, "input");
    check_view(output, "output");
    const auto groups = static_cast<uint64_t>(normalization.groups), channels = static_cast<uint64_t>(output.channels);
    const uint64_t all = static_cast<uint64_t>(output.batch) * groups, given = normalization.shared ? groups : all;
    const float *mean = normalization.mean, *variance = normalization.variance;
    const float *gamma = normalization.gamma, *beta = normalization.beta;
    for (const auto &[vector, count, name] : {std::tuple(mean, given, "mean"),
                                              {variance, given, "variance"},
                                              {gamma, channels, "gamma"},
                                              {beta, channels, "beta"}}) {
        if (vector) {
            check_range(vector, count * sizeof(float), sizeof(float), name);
        }
    }
    if (!mean) {
        const PixelSums sums = sum_pixels(input, &normalization.mask, false, 2 * all * sizeof(float));
        auto *const found = static_cast<float *>(sums.behind);
        merge_groups(sums, {input, &normalization.mask, normalization.groups, found, found + all});
        mean = found;
        variance = found + all;
    }
    const TileList list = normalization.mask.list({1, 1}, {});
    launch(normalize_names.of(output.dtype), items_of(output, list), input.data, cl_long{input.stride_n},
           cl_long{input.stride_h}, cl_long{input.stride_w}, output.data, cl_long{output.stride_n},
           cl_long{output.stride_h}, cl_long{output.stride_w}, list.xy, static_cast<uint32_t>(list.capacity),
           list.device_count, static_cast<uint32_t>(channels), mean, variance,
           static_cast<uint32_t>(normalization.shared ? 0 : groups), static_cast<uint32_t>(channels / groups), gamma,
           beta, normalization.epsilon, static_cast<int32_t>(normalization.activation.function),
           normalization.activation.slope);
    if (normalization.zero) {
        update_pixels(&normalization.mask, output, nullptr, true);
    }
}

void OpenClMask::set_scores(const distile_tensor &tensor, const Scores &scores) {
    device_.check_view(tensor, "tensor");
    if (scores.weights) {
        device_.check_range(scores.weights, static_cast<uint64_t>(tensor.channels) * sizeof(float), sizeof(float),
                            "weights");
    }
    set_words({tensor.batch, tensor.height, tensor.width}, [&](uint32_t *words) {
        device_.launch(score_names.of(tensor.dtype),
                       items_for(static_cast<uint64_t>(tensor.width),
                                 static_cast<uint64_t>(tensor.batch) * static_cast<uint64_t>(tensor.height)),
                       tensor.data, cl_long{tensor.stride_n}, cl_long{tensor.stride_h}, cl_long{tensor.stride_w},
                       tensor.height, tensor.width, tensor.channels, scores.weights, scores.bias, scores.threshold,
                       words_per_row_, words);
    });
}

}  // namespace distile
