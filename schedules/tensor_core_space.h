/** \file
 * The space of kernels for NVIDIA's tensor cores, which are templates in kernels/tensor_core. Independent of
 * Halide and CUDA, so a search can walk it anywhere.
 *
 * A block computes `block_pixels` active pixels x `block_channels` output channels: a matrix product whose rows are
 * gathered by the tile list. With groups, it computes channels of one panel (GroupPanels). A step of the reduction is
 * 128 bytes of channels of one kernel position; `stages` steps are in flight, in shared memory. `splits` blocks, a
 * cluster, share every reduction and add their sums; if `balanced`, blocks share the reductions of the last items
 * instead, so that all end together.
 */
#ifndef DISTILE_SCHEDULES_TENSOR_CORE_SPACE_H
#define DISTILE_SCHEDULES_TENSOR_CORE_SPACE_H

#include "schedules/space.h"
#include <cstdint>

namespace distile {

/** What a block needs of a multiprocessor, as the templates have it: each variant asserts it when it is compiled. */
struct TensorCoreBlock {
    int64_t threads;
    int64_t shared_bytes;
    int64_t per_multiprocessor; /**< Blocks at once: 1 or 2. */
};

GroupPanels group_panels(const OperatorFacts &op);

/** The blocks of output channels of an operator. */
int64_t channel_blocks(const OperatorFacts &op, int block_channels);

/** Whether the tiles of a theta are copied in boxes, one copy a tile and step, instead of row by row. */
bool has_boxes(TensorCores cores, const Theta &theta, const OperatorFacts &op);

/** Whether there are kernels for an operator: a convolution or a linear layer. */
bool runs_on_tensor_cores(const OperatorFacts &op);

/** Quantized operators need more shared memory. */
const Space &tensor_core_space(TensorCores cores, bool quantized = false);
/** The space of an operator: attention and its products have their own (attention_space.h). */
const Space &tensor_core_space(TensorCores cores, const OperatorFacts &op);

/** The block of a theta, which need not be legal. Knobs that it lacks count as 0. */
TensorCoreBlock tensor_core_block(TensorCores cores, const Theta &theta, bool quantized = false);

}  // namespace distile

#endif
