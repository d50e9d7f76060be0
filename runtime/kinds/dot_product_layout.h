/** \file
 * Packing for dot-product and matrix instructions of CPUs: the weight layouts "cpu-k32" and "cpu-k64"; and "cuda-k64".
 */
#ifndef DISTILE_DOT_PRODUCT_LAYOUT_H
#define DISTILE_DOT_PRODUCT_LAYOUT_H

#include "kernels/dot_products.h"
#include "runtime/kinds/channel_sections.h"
#include "runtime/kinds/filter.h"

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

/** The elements of a pack of such a layout. */
int32_t pack_of(const WeightLayout &layout);

/** Packs the weights in blocks of 16 output channels, and the bias. Channels of groups are where their ChannelSections
 * have them. A block holds the steps of one phase after the other, by rows. The reduction of a phase runs over its tap
 * rows, its tap columns and the input channels that the section reads; that of a depthwise convolution over its tap
 * columns and its tap rows, which zeros make a multiple of 4. A step is layout.block of its elements, in 16 packs of 2
 * or 4: [pack][output channel][element]. Zeros fill the last step of a phase. The array is [block][step][element]. For
 * a quantized operator, also packs a distile_requantization and what follows it. Throws SourceError. */
std::vector<PackedArray> pack_for_dot_products(const FilterExtents &extents, int32_t groups, const PhasedTaps &rows,
                                               const PhasedTaps &columns, const FilterSource &source,
                                               const WeightLayout &layout);

/** What each phase reads along both axes, and which channels, as a distile_dot_product_code has it. */
struct DotProductTaps {
    int32_t scale_h, scale_w, stride_h, stride_w, read_channels, section_channels, apart_groups;
    std::vector<distile_taps> rows, columns;
};

/** For a linear layer, `conv` is a 1 x 1 convolution. */
DotProductTaps dot_product_taps(distile_operator_kind kind, const distile_conv2d &conv, int32_t pack);

}  // namespace distile

#endif
