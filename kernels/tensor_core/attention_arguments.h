/** \file
 * The arguments of the kernels for tensor cores that compute attention or one of its products, shared by the host and
 * the device. Addresses are of the device.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ATTENTION_ARGUMENTS_H
#define DISTILE_CUDA_TENSOR_CORE_ATTENTION_ARGUMENTS_H

#include "kernels/tensor_core/arguments.h"

namespace distile::tensor_core {

/** Some tokens of each image: those at tokens[starts[image]] up to tokens[starts[image + 1]]. */
struct TokenList {
    const uint32_t *tokens;  ///< In ascending order, in the low 16 bits. Null: every token of every image.
    const uint32_t *starts;
    int32_t length;  ///< The tokens of an image.
};

/** Scores or probabilities: [batch, heads, rows, keys]. A row may begin at any element, so strides are in elements. */
struct ScoreTensor {
    char *data;
    int32_t stride_row, stride_head, stride_image;
};

struct AttentionArguments {
    Tensor query, key, value, output;  ///< Token t of an image is pixel (0, t).
    ScoreTensor scores;                ///< The output of scores alone; the input of values alone.
    TokenList rows, keys;
    const uint32_t *count;  ///< If it is 0, the block has nothing to do, whatever the lists.
    int32_t batch;
    float scale;
    uint32_t blocks;  ///< The blocks that share the work: the first ones of the launch.
    /** If the work is balanced: as in Arguments. */
    float *parts;
    uint32_t *signals;
};

}  // namespace distile::tensor_core

#endif
