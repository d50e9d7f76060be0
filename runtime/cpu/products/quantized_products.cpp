#include "runtime/cpu/products/quantized_products.h"
#include "runtime/base/types.h"
#include "runtime/dispatch/call.h"
#include "runtime/kinds/dot_product_layout.h"
#include "runtime/kinds/operator_kind.h"
#include "runtime/tensor/tensor.h"
#include <functional>
#include <numeric>
#include <vector>

namespace distile {

namespace {

constexpr int32_t staged_blocks = 4;

/** The weights, the bias and what requantizes sums. Without a filter, only their extents. */
std::vector<PackedArray> pack_arrays(const StageFilter &filter, const FilterSource &source) {
    const FilterExtents extents{filter.out_channels, filter.in_channels / filter.groups, filter.kernel_h,
                                filter.kernel_w};
    return pack_for_dot_products(extents, filter.groups, phase_of_all(filter.kernel_h), phase_of_all(filter.kernel_w),
                                 source, *find_layout("cpu-k64"));
}

/** What the extents of packed arrays follow from. */
std::vector<PackedArray> arrays_of(const StageFilter &filter) {
    const distile_weights_source source{};
    const QuantizedOperator quantized{DISTILE_UINT8, DISTILE_UINT8, true};
    return pack_arrays(filter, {source, nullptr, &quantized, DISTILE_UINT8});
}

distile_dtype type_of(const PackedArray &array) {
    return array.role == DISTILE_ROLE_WEIGHTS ? DISTILE_INT8 : DISTILE_FLOAT32;
}
int64_t count_of(const PackedArray &array) {
    return std::accumulate(array.extents.begin(), array.extents.end(), int64_t{1}, std::multiplies<>());
}
/** An array's, up to where the next one begins. */
int64_t bytes_of(const PackedArray &array) {
    constexpr auto alignment = static_cast<int64_t>(quantized_alignment);
    return (count_of(array) * element_bytes(type_of(array)) + alignment - 1) / alignment * alignment;
}

distile_array packed_array(const PackedArray &packed, const void *data) {
    distile_array array{};
    array.data = const_cast<void *>(data);  // Code only reads it.
    array.dtype = type_of(packed);
    array.dimensions = static_cast<int32_t>(packed.extents.size());
    int32_t stride = 1;
    for (size_t i = 0; i < packed.extents.size(); i++) {
        array.dim[i] = {0, packed.extents[i], stride};
        stride *= packed.extents[i];
    }
    return array;
}

}  // namespace

int64_t quantized_bytes(const StageFilter &filter) {
    int64_t bytes = 0;
    for (const PackedArray &array : arrays_of(filter)) {
        bytes += bytes_of(array);
    }
    return bytes;
}

void pack_quantized(const StageFilter &filter, const FilterSource &source, void *packed) {
    auto *to = static_cast<char *>(packed);
    for (const PackedArray &array : pack_arrays(filter, source)) {
        find_type(type_of(array))->from_float(array.values.data(), to, array.values.size());
        to += bytes_of(array);
    }
}

void run_quantized(CpuDevice &device, const QuantizedConvolution &given, const TileList &pixels) {
    if (pixels.count == 0) {
        return;
    }
    distile_context &context = device.context;
    const QuantizedProducts &products = device.quantized_products();
    const StageFilter &filter = given.filter;
    const distile_window &window = given.window;
    distile_conv2d conv{};
    conv.in_channels = filter.in_channels;
    conv.out_channels = filter.out_channels;
    conv.groups = filter.groups;
    conv.kernel_h = window.kernel_h;
    conv.kernel_w = window.kernel_w;
    conv.stride_h = window.stride_h;
    conv.stride_w = window.stride_w;
    conv.dilation_h = window.dilation_h;
    conv.dilation_w = window.dilation_w;
    conv.pad_top = window.pad_top;
    conv.pad_left = window.pad_left;
    const DotProductTaps taps = dot_product_taps(conv2d_kind.kind, conv, pack_of(*find_layout("cpu-k64")));
    const distile_dot_product_code code{given.activation.function,
                                        1,
                                        1,
                                        products.block_pixels,
                                        products.block_channels,
                                        staged_blocks,
                                        1,
                                        taps.scale_h,
                                        taps.scale_w,
                                        taps.stride_h,
                                        taps.stride_w,
                                        taps.read_channels,
                                        taps.section_channels,
                                        taps.apart_groups,
                                        taps.rows.data(),
                                        taps.columns.data(),
                                        1};
    std::vector<distile_array> operands{array_of(given.input)};
    const auto *weights = static_cast<const char *>(given.weights);
    for (const PackedArray &array : arrays_of(filter)) {
        operands.push_back(packed_array(array, weights));
        weights += bytes_of(array);
    }
    if (given.residual) {
        operands.push_back(array_of(without_border(*given.residual)));
    }
    operands.push_back(array_of(without_border(given.output)));
    distile_kernel_call call{};
    call.hooks = &context;
    call.operands = operands.data();
    call.num_operands = static_cast<int32_t>(operands.size());
    call.tile_xy = pixels.xy;
    call.tile_capacity = static_cast<int32_t>(pixels.capacity);
    call.num_tiles = static_cast<int32_t>(pixels.count);
    call.height = given.output.height;
    call.batch = given.output.batch;
    call.threads = device.threads();
    call.store_tiles = 1;  // All that is listed.
    call.slope = given.activation.slope;
    if (products.call(&code, &call) != 0) {
        throw Failure{fail(&context, DISTILE_ERROR_OUT_OF_MEMORY, "distile_run_stage: out of memory")};
    }
}

}  // namespace distile
