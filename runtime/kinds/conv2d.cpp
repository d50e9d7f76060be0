#include "runtime/kinds/conv2d.h"
#include "runtime/kinds/dot_product_layout.h"
#include "runtime/kinds/nonzeros_layout.h"
#include "runtime/kinds/tensor_core_layout.h"
#include "runtime/kinds/two_four_layout.h"

namespace distile {

FilterExtents filter_extents(const distile_conv2d &conv) {
    return {conv.out_channels, conv.in_channels / conv.groups, conv.kernel_h, conv.kernel_w};
}

std::string why_channels_illegal(const void *op) {
    const distile_conv2d &conv = conv_of(op);
    if (conv.groups >= 1 && conv.in_channels % conv.groups == 0 && conv.out_channels % conv.groups == 0) {
        return "";
    }
    return "its " + std::to_string(conv.groups) + " groups do not divide its " + std::to_string(conv.in_channels) +
           " -> " + std::to_string(conv.out_channels) + " channels";
}

distile_activation epilogue_of_conv(const void *op) {
    return conv_of(op).epilogue;
}

distile_window window_of_conv(const distile_conv2d &conv, distile_window_kind kind) {
    return {conv.kernel_h,   conv.kernel_w, conv.stride_h, conv.stride_w, conv.dilation_h,
            conv.dilation_w, conv.pad_top,  conv.pad_left, kind};
}

std::string shape_of_filter(const void *op) {
    const distile_conv2d &conv = conv_of(op);
    return std::to_string(conv.in_channels) + " -> " + std::to_string(conv.out_channels) + " channels in " +
           std::to_string(conv.groups) + " groups, " + std::to_string(conv.kernel_h) + " x " +
           std::to_string(conv.kernel_w) + " kernel";
}

int64_t elements_of_filter(const void *op) {
    return filter_extents(conv_of(op)).elements();
}

int64_t conv_output_extent(const Axis &axis, int64_t input) {
    const int64_t room = input + axis.pad_before + axis.pad_after - int64_t{axis.dilation} * (axis.kernel - 1) - 1;
    return room < 0 ? 0 : room / axis.stride + 1;
}

namespace conv2d_functions {
namespace {

ImageSize output_size(const void *op, const ImageSize &input) {
    const distile_conv2d &conv = conv_of(op);
    return {conv_output_extent(rows_of(conv), input.height), conv_output_extent(columns_of(conv), input.width)};
}

distile_border border(const void *op) {
    const distile_conv2d &conv = conv_of(op);
    return {conv.pad_top, conv.pad_bottom, conv.pad_left, conv.pad_right};
}

distile_window window(const void *op) {
    return window_of_conv(conv_of(op), DISTILE_WINDOW_CONV);
}

PixelRange interior_range(const Axis &axis, const PixelRange &readable) {
    // Output pixel x reads from x * stride - pad to x * stride - pad + dilation * (kernel - 1).
    const int64_t first_read = readable.first + axis.pad_before;
    const int64_t last_read = readable.last - 1 + axis.pad_before - int64_t{axis.dilation} * (axis.kernel - 1);
    return {first_read <= 0 ? 0 : (first_read + axis.stride - 1) / axis.stride,
            last_read < 0 ? 0 : last_read / axis.stride + 1};
}

PixelRect interior(const void *op, const PixelRect &readable) {
    const distile_conv2d &conv = conv_of(op);
    return {interior_range(rows_of(conv), readable.rows), interior_range(columns_of(conv), readable.columns)};
}

GroupPanels panels_of(const distile_conv2d &conv, WeightOrder order) {
    return {conv.groups, conv.in_channels / conv.groups, conv.out_channels / conv.groups,
            order == WeightOrder::QuantizedTensorCore};
}

bool packs(const void *op, WeightOrder order) {
    const bool on_tensor_cores = order == WeightOrder::TensorCore || order == WeightOrder::QuantizedTensorCore;
    if (order == WeightOrder::Nonzeros || order == WeightOrder::NonzeroQuads) {
        return packs_nonzeros(filter_extents(conv_of(op)));
    }
    if (order == WeightOrder::PairedNonzeros) {
        return packs_paired_nonzeros(filter_extents(conv_of(op)), conv_of(op).groups);
    }
    if (order == WeightOrder::NonzeroBitmap) {
        return false;
    }
    if (order == WeightOrder::TwoFour) {
        return packs_two_four(filter_extents(conv_of(op)), conv_of(op).groups);
    }
    return !on_tensor_cores || conv_of(op).groups == 1 || panels_of(conv_of(op), order).fit;
}

std::vector<PackedArray> pack(const void *op, const FilterSource &source, const WeightLayout &layout) {
    const distile_conv2d &conv = conv_of(op);
    const FilterExtents extents = filter_extents(conv);
    if (layout.order == WeightOrder::TensorCore || layout.order == WeightOrder::QuantizedTensorCore) {
        return pack_for_tensor_cores(extents, source, layout, panels_of(conv, layout.order));
    }
    if (layout.order == WeightOrder::Nonzeros) {
        return pack_nonzeros(extents, conv.groups, source);
    }
    if (layout.order == WeightOrder::NonzeroQuads) {
        return pack_nonzero_quads(extents, conv.groups, source);
    }
    if (layout.order == WeightOrder::PairedNonzeros) {
        return pack_paired_nonzeros(extents, conv.groups, source);
    }
    if (layout.order == WeightOrder::TwoFour) {
        return pack_two_four(extents, source);
    }
    if (layout.order != WeightOrder::ChannelBlocks) {
        return pack_for_dot_products(extents, conv.groups, phase_of_all(conv.kernel_h), phase_of_all(conv.kernel_w),
                                     source, layout);
    }
    return pack_filter(
        extents, single_taps(conv.kernel_h), single_taps(conv.kernel_w), source,
        {conv.groups, extents.in_channels, conv.out_channels / conv.groups, layout.block, layout.readers});
}

constexpr WeightPacking weights = {shape_of_filter, packs, pack, elements_of_filter, epilogue_of_conv};

}  // namespace
}  // namespace conv2d_functions

const OperatorKind conv2d_kind = {
    DISTILE_MASKED_CONV2D,    why_channels_illegal,       conv2d_functions::output_size, conv2d_functions::border,
    conv2d_functions::window, conv2d_functions::interior, &conv2d_functions::weights,    nullptr,
    DISTILE_MATH_TF32};

}  // namespace distile
