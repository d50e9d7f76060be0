/** \file
 * Packing for tensor cores: the weight layouts "cuda-k8", "cuda-k16" and "cuda-k32".
 */
#ifndef DISTILE_TENSOR_CORE_LAYOUT_H
#define DISTILE_TENSOR_CORE_LAYOUT_H

#include "runtime/kinds/filter.h"

namespace distile {

/** Packs the weights in steps of the reduction, each with one row of 128 bytes for every output channel, and the bias.
 * Panels of groups have steps of their own, one panel after the other.
 *
 * The reduction runs over blocks of input channels, then the kernel's positions, then the channels of a block. A block
 * is one step, or all channels of the panel if steps do not divide them. Zeros fill the last step, and rows of zeros
 * make the output channels a multiple of 8. Within row o, piece p of 16 bytes stands at p ^ (o % 8), so that eight rows
 * are read from shared memory without bank conflicts. The array is [step][output channel][element].
 *
 * Float32 is rounded to TF32, to nearest even. For a quantized operator, also packs a distile_requantization and what
 * follows it. Throws SourceError. */
std::vector<PackedArray> pack_for_tensor_cores(const FilterExtents &extents, const FilterSource &source,
                                               const WeightLayout &layout, const GroupPanels &panels);

}  // namespace distile

#endif
