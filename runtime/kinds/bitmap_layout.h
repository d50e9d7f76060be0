/** \file
 * Packing of the nonzero weights in 16 bits, with a bit for each weight: the weight layout "cuda-bitmap".
 */
#ifndef DISTILE_BITMAP_LAYOUT_H
#define DISTILE_BITMAP_LAYOUT_H

#include "runtime/kinds/filter.h"

namespace distile {

/** Packs the weights of a linear layer that are not 0 in the type of its input, as distile_cuda_bitmap_weights
 * describes them, and the bias. Throws SourceError. */
std::vector<PackedArray> pack_bitmap(const FilterExtents &extents, const FilterSource &source);

}  // namespace distile

#endif
