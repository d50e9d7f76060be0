/** \file
 * Packing for dot-product and matrix instructions of CPUs: the weight layouts "cpu-k32" and "cpu-k64"; and "cuda-k64".
 */
#ifndef DISTILE_DOT_PRODUCT_LAYOUT_H
#define DISTILE_DOT_PRODUCT_LAYOUT_H

#include "filter.h"

namespace distile {

/** The taps along an axis, and those of each phase among them. */
struct PhasedTaps {
    struct Range {
        int begin, end;
    };
    std::vector<MergedTap> taps;
    std::vector<Range> phases;
};

/** One phase with a tap per kernel position. */
PhasedTaps phase_of_all(int kernel);

/** Which input channels a block of 16 output channels reads: those of all groups that it has a part of. */
struct ReadChannels {
    int32_t groups, group_inputs, group_outputs;

    explicit ReadChannels(const FilterExtents &extents, int32_t num_groups = 1)
        : groups(num_groups), group_inputs(extents.in_channels), group_outputs(extents.out_channels / num_groups) {
    }
    /** Whether each output channel reads only the input channel with its own index. */
    bool is_depthwise() const {
        return groups > 1 && group_inputs == 1 && group_outputs == 1;
    }
    /** As many for each block. */
    int32_t count() const;
    /** The first one for the block of an output channel. */
    int32_t first(int32_t out_channel) const;
};

/** Packs the weights in blocks of 16 output channels, and the bias. A block holds the steps of one phase after the
 * other, by rows. The reduction of a phase runs over its tap rows, its tap columns and the input channels that the
 * block reads; that of a depthwise convolution over its tap columns and its tap rows, which zeros make a multiple of 4.
 * A step is layout.block of its elements, in 16 groups of 2 or 4: [group][output channel][element]. Zeros fill the last
 * step of a phase and the last block. The array is [block][step][element]. For a quantized operator, also packs a
 * distile_requantization and what follows it. Throws SourceError. */
std::vector<PackedArray> pack_for_dot_products(const FilterExtents &extents, const ReadChannels &reads,
                                               const PhasedTaps &rows, const PhasedTaps &columns,
                                               const FilterSource &source, const WeightLayout &layout);

/** What each phase reads along both axes, and which channels, as a distile_dot_product_code has it. */
struct DotProductTaps {
    int32_t scale_h, scale_w, stride_h, stride_w, groups, read_channels;
    std::vector<distile_taps> rows, columns;
};

/** Of a linear layer, the convolution is one of 1 x 1. */
DotProductTaps dot_product_taps(distile_operator_kind kind, const distile_conv2d &conv);

}  // namespace distile

#endif
