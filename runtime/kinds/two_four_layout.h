/** \file
 * Packing of weights with at most two nonzeros in four consecutive input channels: the weight layout "cuda-two-four".
 */
#ifndef DISTILE_TWO_FOUR_LAYOUT_H
#define DISTILE_TWO_FOUR_LAYOUT_H

#include "runtime/kinds/filter.h"

namespace distile {

/** Whether there is such a layout of a filter: both numbers of channels are multiples of 8, there are no groups, and
 * the kernel has at most 16 x 16 positions. */
bool packs_two_four(const FilterExtents &extents, int32_t groups);

/** Whether at most two of four consecutive input channels, the first of which is a multiple of four, have weights that
 * are not 0 in the type of the input, DISTILE_FLOAT16 or DISTILE_BFLOAT16, for each output channel and kernel position.
 * Throws SourceError. */
bool has_two_four(const FilterExtents &extents, const FilterSource &source);

/** Packs the weights in the type of the input, as kernels/two_four.h describes them, and the bias. Throws SourceError,
 * also where has_two_four() is false. */
std::vector<PackedArray> pack_two_four(const FilterExtents &extents, const FilterSource &source);

}  // namespace distile

#endif
