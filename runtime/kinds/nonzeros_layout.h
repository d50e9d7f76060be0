/** \file
 * Packing of the nonzero weights alone: the weight layouts "cpu-nonzeros", "cpu-nonzero-quads" and "cuda-nonzeros".
 */
#ifndef DISTILE_NONZEROS_LAYOUT_H
#define DISTILE_NONZEROS_LAYOUT_H

#include "runtime/kinds/filter.h"
#include "runtime/kinds/weight_layout.h"

namespace distile {

/** The input channels of a quad. */
constexpr int32_t quad_channels = 4;

/** The input channels of a chunk, or its quads: as many as the nearest cache holds, staged for each position of the
 * kernel. */
int32_t nonzero_channels(int32_t kernel_h, int32_t kernel_w);

/** Whether the places of weights in a chunk fit their 16 bits. */
bool packs_nonzeros(const FilterExtents &extents);

/** Packs the weights that are not 0, and the bias, as distile_nonzero_weights describes them. A weight that is NaN is
 * kept; one that batch normalisation makes 0 is not. Throws SourceError. */
std::vector<PackedArray> pack_nonzeros(const FilterExtents &extents, int32_t groups, const FilterSource &source);

/** The quads of a filter: those of an output channel and a kernel position that it reads, also in part. */
int64_t count_quads(const FilterExtents &extents, int32_t groups);

/** Packs the quads of a quantized filter that are not 0, the bias, and a distile_requantization with what follows it.
 * Throws SourceError. */
std::vector<PackedArray> pack_nonzero_quads(const FilterExtents &extents, int32_t groups, const FilterSource &source);

/** Whether code for GPUs can count the columns of the layout "cuda-nonzeros". */
bool packs_paired_nonzeros(const FilterExtents &extents, int32_t groups);

/** Packs the same weights as distile_cuda_nonzero_weights describes them, and the bias. Throws SourceError. */
std::vector<PackedArray> pack_paired_nonzeros(const FilterExtents &extents, int32_t groups, const FilterSource &source);

/** The number of weights, or quads of them, that a function above kept. */
int64_t nonzeros_of(const PackedArray &weights, WeightOrder order);

}  // namespace distile

#endif
