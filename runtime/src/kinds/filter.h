/** \file
 * What kinds with a filter share: packing it, with bias and batch normalisation folded in.
 */
#ifndef DISTILE_FILTER_H
#define DISTILE_FILTER_H

#include "operator_kind.h"

namespace distile {

/** Positions of the kernel [begin, end) whose weights a packed tap is the sum of: one, but after nearest upsampling. */
struct MergedTap {
    int begin, end;
};

/** The extents of a filter. `in_channels` are those that an output channel reads. */
struct FilterExtents {
    int32_t out_channels, in_channels, kernel_h, kernel_w;

    int64_t elements() const {
        return int64_t{out_channels} * in_channels * kernel_h * kernel_w;
    }
};

/** A tap for each of `kernel` positions. */
std::vector<MergedTap> single_taps(int kernel);

/** The weights in blocks of output channels, each [row of taps][column of taps][input channel][output channel in
 * block], the last one padded with zeros; and the bias, padded likewise. Throws SourceError. */
std::vector<PackedArray> pack_filter(const FilterExtents &extents, const std::vector<MergedTap> &rows,
                                     const std::vector<MergedTap> &columns, const FilterSource &source, int32_t block);

}  // namespace distile

#endif
