/** \file
 * The arguments of the attention kernels for tensor cores, shared by the host and the device. Addresses are of the
 * device.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ATTENTION_ARGUMENTS_H
#define DISTILE_CUDA_TENSOR_CORE_ATTENTION_ARGUMENTS_H

#include "arguments.h"

namespace distile::tensor_core {

/** Some tokens of each image: those at tokens[starts[image]] up to tokens[starts[image + 1]]. */
struct TokenList {
    const uint32_t *tokens;  ///< In ascending order, in the low 16 bits. Null: every token of every image.
    const uint32_t *starts;
    int32_t length;  ///< Of an image.
};

struct AttentionArguments {
    Tensor query, key, value, output;  ///< Token t of an image is pixel (0, t).
    TokenList rows, keys;
    const uint32_t *count;  ///< If it is 0, the block has nothing to do, whatever the lists.
    int32_t batch;
    float scale;
    uint32_t blocks;  ///< The first so many blocks of the launch share the work.
    /** If the work is balanced: as in Arguments. */
    float *parts;
    uint32_t *signals;
};

}  // namespace distile::tensor_core

#endif
