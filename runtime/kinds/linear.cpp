#include "runtime/kinds/bitmap_layout.h"
#include "runtime/kinds/dot_product_layout.h"
#include "runtime/kinds/nonzeros_layout.h"
#include "runtime/kinds/tensor_core_layout.h"
#include "runtime/kinds/two_four_layout.h"

namespace distile {

namespace linear_functions {
namespace {

const distile_linear &linear_of(const void *op) {
    return *static_cast<const distile_linear *>(op);
}

FilterExtents extents(const void *op) {
    return {linear_of(op).out_channels, linear_of(op).in_channels, 1, 1};
}

std::string why_illegal(const void *op) {
    const distile_linear &linear = linear_of(op);
    return linear.in_channels >= 1 && linear.out_channels >= 1
               ? ""
               : "it has " + std::to_string(linear.in_channels) + " -> " + std::to_string(linear.out_channels) +
                     " channels";
}

distile_activation epilogue(const void *op) {
    return linear_of(op).epilogue;
}

ImageSize output_size(const void *, const ImageSize &input) {
    return input;
}

distile_border border(const void *) {
    return {};
}

distile_window window(const void *) {
    return {1, 1, 1, 1, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
}

/** Each output token reads only its input token. */
PixelRect interior(const void *, const PixelRect &readable) {
    return readable;
}

std::string weights_shape(const void *op) {
    return std::to_string(linear_of(op).in_channels) + " -> " + std::to_string(linear_of(op).out_channels) +
           " channels of tokens";
}

bool packs(const void *op, WeightOrder order) {
    if (order == WeightOrder::TwoFour) {
        return packs_two_four(extents(op), 1);
    }
    return order != WeightOrder::PairedNonzeros || packs_paired_nonzeros(extents(op), 1);
}

std::vector<PackedArray> pack(const void *op, const FilterSource &source, const WeightLayout &layout) {
    switch (layout.order) {
    case WeightOrder::TensorCore:
    case WeightOrder::QuantizedTensorCore:
        return pack_for_tensor_cores(
            extents(op), source, layout,
            {1, extents(op).in_channels, extents(op).out_channels, layout.order == WeightOrder::QuantizedTensorCore});
    case WeightOrder::DotProduct:
    case WeightOrder::QuantizedDotProduct:
        return pack_for_dot_products(extents(op), 1, phase_of_all(1), phase_of_all(1), source, layout);
    case WeightOrder::Nonzeros:
        return pack_nonzeros(extents(op), 1, source);
    case WeightOrder::NonzeroQuads:
        return pack_nonzero_quads(extents(op), 1, source);
    case WeightOrder::PairedNonzeros:
        return pack_paired_nonzeros(extents(op), 1, source);
    case WeightOrder::NonzeroBitmap:
        return pack_bitmap(extents(op), source);
    case WeightOrder::TwoFour:
        return pack_two_four(extents(op), source);
    case WeightOrder::ChannelBlocks:
        break;
    }
    return pack_filter(extents(op), single_taps(1), single_taps(1), source, layout.block);
}

int64_t filter_elements(const void *op) {
    return extents(op).elements();
}

constexpr WeightPacking weights = {weights_shape, packs, pack, filter_elements, epilogue};

}  // namespace
}  // namespace linear_functions

const OperatorKind linear_kind = {
    DISTILE_MASKED_LINEAR,    linear_functions::why_illegal, linear_functions::output_size, linear_functions::border,
    linear_functions::window, linear_functions::interior,    &linear_functions::weights,    nullptr,
    DISTILE_MATH_FLOAT32};

}  // namespace distile
