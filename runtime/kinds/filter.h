/** \file
 * Shared by all kinds with a filter: packing it, with bias and batch normalisation folded in.
 */
#ifndef DISTILE_FILTER_H
#define DISTILE_FILTER_H

#include "runtime/kinds/group_blocks.h"
#include "runtime/kinds/operator_kind.h"

namespace distile {

/** A packed tap is the sum of the weights at the kernel positions [begin, end): one position, except after nearest
 * upsampling. */
struct MergedTap {
    int begin, end;
};

/** The extents of a filter. `in_channels` counts those that one output channel reads. */
struct FilterExtents {
    int32_t out_channels, in_channels, kernel_h, kernel_w;

    int64_t elements() const {
        return int64_t{out_channels} * in_channels * kernel_h * kernel_w;
    }
};

/** One tap per kernel position. */
std::vector<MergedTap> single_taps(int kernel);

/** Folds bias and batch normalisation into an output channel. Stores its weights, [tap row][tap column][input channel],
 * and returns its bias. Throws SourceError. */
float fold_channel(const FilterExtents &extents, const std::vector<MergedTap> &rows,
                   const std::vector<MergedTap> &columns, const FilterSource &source, int32_t o,
                   std::vector<float> &weights);

/** Packs the weights in blocks of output channels, each [tap row][tap column][input channel][output channel in block],
 * and the bias. Pads both with zeros to whole blocks. Throws SourceError. */
std::vector<PackedArray> pack_filter(const FilterExtents &extents, const std::vector<MergedTap> &rows,
                                     const std::vector<MergedTap> &columns, const FilterSource &source, int32_t block);

/** Packs a filter with groups, which lie in the blocks as GroupBlocks says. */
std::vector<PackedArray> pack_filter(const FilterExtents &extents, const std::vector<MergedTap> &rows,
                                     const std::vector<MergedTap> &columns, const FilterSource &source,
                                     const GroupBlocks &blocks);

}  // namespace distile

#endif
