/** \file
 * The space of kernels for NVIDIA's tensor cores that compute attention or one of its products, which are templates in
 * kernels/tensor_core. Independent of Halide.
 *
 * A block computes block_rows rows of an image and a head at a time and goes through the keys in blocks of block_keys,
 * of which `stages` are in shared memory.
 */
#ifndef DISTILE_SCHEDULES_ATTENTION_SPACE_H
#define DISTILE_SCHEDULES_ATTENTION_SPACE_H

#include "schedules/space.h"
#include <cstdint>

namespace distile {

/** What a block takes of its multiprocessor, and what it shares with others. */
struct AttentionBlock {
    int64_t shared_bytes;
    int threads;
    int64_t part_bytes; /**< Its sums of an item that it shares; 0 without a balance. */
};

/** Whether there are kernels for such an operator: float32, as TF32, and the products alone have those of compute
 * capability 8.0 only. */
bool has_attention(const OperatorFacts &op, TensorCores cores);

const Space &attention_space(TensorCores cores);

AttentionBlock attention_block(TensorCores cores, const Theta &theta, const OperatorFacts &op);

}  // namespace distile

#endif
