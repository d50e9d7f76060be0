#include "runtime/kinds/polyphase.h"
#include "runtime/kinds/conv2d.h"
#include "runtime/kinds/dot_product_layout.h"

namespace distile {

namespace polyphase_functions {
namespace {

template<bool nearest> ImageSize output_size(const void *op, const ImageSize &input) {
    const Polyphase phases = polyphase_of(conv_of(op), nearest);
    return {std::max<int64_t>(phases.rows.output_extent(input.height), 0),
            std::max<int64_t>(phases.columns.output_extent(input.width), 0)};
}

template<bool nearest> distile_border border(const void *op) {
    const Polyphase phases = polyphase_of(conv_of(op), nearest);
    return {phases.rows.border_before(), phases.rows.border_after(), phases.columns.border_before(),
            phases.columns.border_after()};
}

template<bool nearest> distile_window window(const void *op) {
    return window_of_conv(conv_of(op), nearest ? DISTILE_WINDOW_UPSAMPLED : DISTILE_WINDOW_TRANSPOSED);
}

/** Counts whole virtual pixels, even if some of their output pixels do not exist. */
PixelRange interior_range(const PolyphaseAxis &axis, const PixelRange &readable) {
    const int64_t first = std::max<int64_t>(readable.first - axis.first_read(), 0);
    const int64_t last = std::max<int64_t>(readable.last - axis.last_read(), 0);
    return {first * axis.stride, last * axis.stride};
}

template<bool nearest> PixelRect interior(const void *op, const PixelRect &readable) {
    const Polyphase phases = polyphase_of(conv_of(op), nearest);
    return {interior_range(phases.rows, readable.rows), interior_range(phases.columns, readable.columns)};
}

std::string shape_of_axis(const PolyphaseAxis &axis) {
    return std::to_string(axis.stride) + " / " + std::to_string(axis.pad_before) + " / " +
           std::to_string(axis.dilation);
}

/** The order of the taps depends on stride, padding and dilation, so the description names them. */
template<bool nearest> std::string weights_shape(const void *op) {
    const Polyphase phases = polyphase_of(conv_of(op), nearest);
    return shape_of_filter(op) + (nearest ? ", upsampled" : ", transposed") + " by stride / padding / dilation " +
           shape_of_axis(phases.rows) + " and " + shape_of_axis(phases.columns);
}

/** After upsampling, sums of weights of 8 bits need not fit 8 bits. */
template<bool nearest> bool packs(const void *op, WeightOrder order) {
    const bool dot_products =
        order == WeightOrder::DotProduct || (order == WeightOrder::QuantizedDotProduct && !nearest);
    return order == WeightOrder::ChannelBlocks || (dot_products && conv_of(op).groups == 1);
}

PhasedTaps phased_taps(const PolyphaseAxis &axis) {
    PhasedTaps phased{axis.taps(), {}};
    for (const Phase &phase : axis.phases()) {
        phased.phases.push_back({phase.begin, phase.begin + phase.taps});
    }
    return phased;
}

template<bool nearest>
std::vector<PackedArray> pack(const void *op, const FilterSource &source, const WeightLayout &layout) {
    const distile_conv2d &conv = conv_of(op);
    const Polyphase phases = polyphase_of(conv, nearest);
    if (layout.order != WeightOrder::ChannelBlocks) {
        return pack_for_dot_products(filter_extents(conv), 1, phased_taps(phases.rows), phased_taps(phases.columns),
                                     source, layout);
    }
    return pack_filter(filter_extents(conv), phases.rows.taps(), phases.columns.taps(), source, layout.block);
}

template<bool nearest> constexpr WeightPacking weights = {weights_shape<nearest>, packs<nearest>, pack<nearest>,
                                                          elements_of_filter, epilogue_of_conv};

template<bool nearest> constexpr OperatorKind make_kind(distile_operator_kind kind) {
    return {kind,
            why_channels_illegal,
            output_size<nearest>,
            border<nearest>,
            window<nearest>,
            interior<nearest>,
            &weights<nearest>,
            nullptr,
            DISTILE_MATH_TF32};
}

}  // namespace
}  // namespace polyphase_functions

const OperatorKind conv_transpose2d_kind = polyphase_functions::make_kind<false>(DISTILE_MASKED_CONV_TRANSPOSE2D);
const OperatorKind upsample_conv2d_kind = polyphase_functions::make_kind<true>(DISTILE_MASKED_UPSAMPLE_CONV2D);

}  // namespace distile
