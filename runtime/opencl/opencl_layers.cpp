// Pooling and combinations of active pixels on an OpenCL device.
#include "opencl_mask.h"
#include <algorithm>
#include <distile/layers.h>

namespace distile {

namespace {

/** The most rows of a grid that loop. */
constexpr int64_t most_rows = 4096;

/** As in kernels.cl. */
struct Window {
    int32_t height, width;
    int32_t kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left;
    int32_t largest, count_padding;
};

struct Moments {
    float count, mean, squares;
};

/** The names of a kernel for each type. */
struct KernelNames {
    const char *float32, *float16, *bfloat16;

    const char *of(distile_dtype dtype) const {
        return dtype == DISTILE_FLOAT32 ? float32 : dtype == DISTILE_FLOAT16 ? float16 : bfloat16;
    }
};

// Literals, because a program knows its kernels by the addresses of their names.
#define DISTILE_KERNEL_NAMES(name)                                                                                     \
    KernelNames {                                                                                                      \
        "distile_" name "_float32", "distile_" name "_float16", "distile_" name "_bfloat16"                            \
    }
constexpr KernelNames pool_names = DISTILE_KERNEL_NAMES("pool"), combine_names = DISTILE_KERNEL_NAMES("combine"),
                      sum_names = DISTILE_KERNEL_NAMES("sum_pixels"),
                      merge_names = DISTILE_KERNEL_NAMES("merge_pixels");

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
           static_cast<int32_t>(combination.other_activation), static_cast<int32_t>(combination.activation));
    if (combination.zero) {
        update_pixels(&combination.mask, output, nullptr, true);
    }
}

OpenClDevice::PixelSums OpenClDevice::sum_pixels(const distile_tensor &tensor, distile_mask *mask, bool largest) {
    const auto images = static_cast<uint64_t>(tensor.batch), channels = static_cast<uint64_t>(tensor.channels);
    const auto pixels = static_cast<uint64_t>(int64_t{tensor.height} * tensor.width);
    // Enough groups to fill the device, each with a few pixels, and few blocks to merge.
    constexpr uint64_t pixels_of_item = 16, blocks_to_merge = 64;
    const uint64_t blocks = std::clamp(pixels / pixels_of_item, uint64_t{1}, blocks_to_merge);
    const ScratchMemory memory = take_scratch(images * blocks * channels * sizeof(Moments));
    ItemGrid grid = items_for(channels, blocks);
    grid.items[2] = images;
    launch(sum_names.of(tensor.dtype), grid, tensor.data, cl_long{tensor.stride_n}, cl_long{tensor.stride_h},
           cl_long{tensor.stride_w}, mask ? mask->list({1, 1}, {}).xy : nullptr,
           mask ? mask->cumulative_lengths() : nullptr, static_cast<uint32_t>(pixels),
           static_cast<uint32_t>(tensor.width), static_cast<uint32_t>(channels), largest ? 1 : 0,
           static_cast<const void *>(memory.get()));
    return {memory.get(), static_cast<uint32_t>(blocks)};
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

}  // namespace distile
