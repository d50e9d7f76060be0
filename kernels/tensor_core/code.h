/** \file
 * The launchers of code for tensor cores.
 */
#ifndef DISTILE_KERNELS_TENSOR_CORE_CODE_H
#define DISTILE_KERNELS_TENSOR_CORE_CODE_H

#include "kernels/call.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A variant for tensor cores: embedded code and how to launch it. Several variants may share a kernel, which then runs
 * one of them, and with it the threads and the shared memory. */
typedef struct distile_tensor_core_code {
    const char *code, *end; /**< A cubin or PTX, followed by a 0 byte. */
    const char *kernel;
    int32_t place;                        /**< Among the kernel's variants. */
    int32_t block_pixels, block_channels; /**< Output pixels and channels that a block computes at a time. */
    int32_t channel_blocks;               /**< Blocks of output channels. */
    int32_t splits;                       /**< Blocks that share a reduction, as a cluster. */
    int32_t balanced;                     /**< 1: blocks share the reductions of the last items. */
    int32_t threads;                      /**< Threads of a block. */
    int32_t blocks_per_multiprocessor, shared_bytes;
    int32_t tile_h, tile_w;         /**< Granularity in output pixels. */
    int32_t box_step_h, box_step_w; /**< The strides of an operator whose tiles are copied in boxes; else 0. */
    int32_t early;                  /**< Whether the kernel may start early, as in distile_gpu_launch. */
} distile_tensor_core_code;

/** Launches the kernel over the tiles of the call, or without a list over its mask. The operands are the input, the
 * weights, the bias, of quantized operators a distile_requantization, the residual if there is one, and the output.
 * Every PolyKernel with such code holds its own copy of this function. */
int distile_call_tensor_core(const distile_tensor_core_code *code, const distile_kernel_call *call);

/** Launches the kernels of several variants, of which the GPU chooses one. `codes` are those of all variants. */
int distile_choose_tensor_core(const distile_tensor_core_code *codes, const distile_kernel_call *calls,
                               const int32_t *variants, int32_t num_calls, const struct distile_gpu_choice *choice);

/** A variant of attention or of one of its products for tensor cores: embedded code and how to launch it. */
typedef struct distile_attention_code {
    const char *code, *end; /**< A cubin or PTX, followed by a 0 byte. */
    const char *kernel;
    int32_t heads;
    int32_t block_rows; /**< Rows that a block computes at a time. */
    int32_t threads;    /**< Threads of a block. */
    int32_t blocks_per_multiprocessor, shared_bytes;
    int32_t part_bytes; /**< The sums that a block shares with another; 0: none. */
    int32_t early;      /**< Whether the kernel may start early, as in distile_gpu_launch. */
    int32_t product;    /**< distile_product; 0: attention. */
} distile_attention_code;

/** Launches the kernel over the rows of the call. The operands are the query, the key, the value and the output; of
 * scores the query, the key and the output, and of values the probabilities, the value and the output. Every PolyKernel
 * with code for tensor cores holds its own copy of this function. */
int distile_call_attention(const distile_attention_code *code, const distile_kernel_call *call);

#ifdef __cplusplus
}
#endif

#endif
