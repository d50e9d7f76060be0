/** \file
 * The launchers of code that Halide generates.
 */
#ifndef DISTILE_KERNELS_HALIDE_CODE_H
#define DISTILE_KERNELS_HALIDE_CODE_H

#include "kernels/call.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A Halide-generated function in argv form; returns 0 for success. */
typedef int (*distile_halide_function)(void **arguments);

/** Calls Halide's code with these arguments, in order: the hooks as user_context; the first operand; tiles [capacity,
 * 2]; bits; num_interior; num_tiles; threads; store_tiles; slope; the packed operands; on a GPU tile_count; the other
 * operands. Every PolyKernel holds its own copy of this function and of Halide's runtime. */
int distile_call_halide(distile_halide_function function, const distile_kernel_call *call);
/** Calls code whose output and residual have the groups of channels in a last dimension of their own. */
int distile_call_halide_groups(distile_halide_function function, int32_t groups, const distile_kernel_call *call);

/** How Halide's code for an operator with a key or a value is called. */
typedef struct distile_row_blocks {
    int32_t heads;
    int32_t rows;      /**< The most rows of a block. */
    int32_t row_step;  /**< The time of a block is that of its rows rounded up to a multiple of this. */
    int32_t causal;    /**< 1: no row of a block sees the keys behind those that its last row sees. */
    int32_t more_rows; /**< What a block costs besides its rows, in rows. */
    int32_t keys;      /**< The most keys whose scores the code holds at once; 0: all. */
} distile_row_blocks;

/** Calls Halide's code for such an operator on a CPU, in parallel: once for every head and every block of listed rows
 * of an image. Its arguments, in order: the hooks as user_context; the input; the x of each row of the block; the x of
 * each active key of the image; the numbers of both; the last key that row 0 sees if the operator is causal; the scale;
 * the other operands. Tokens have the dimensions (channel of the head, x), scores (x of the key, x). */
int distile_call_row_blocks(distile_halide_function function, const distile_row_blocks *blocks,
                            const distile_kernel_call *call);

/** How Halide's code for an operator with a key or a value is called on a GPU: the rows and keys of one head that a
 * block takes at a time. */
typedef struct distile_token_lists {
    int32_t block_rows, block_keys;
} distile_token_lists;

/** Calls Halide's code for an operator with a key or a value on a GPU, once for all heads and images. Its arguments, in
 * order: the hooks as user_context; the input; the lists of rows and of keys; the blocks that they fill at most in an
 * image; the last key that row 0 sees if the operator is causal; the scale; where each image's rows and keys begin in
 * the lists; the number of rows; the number of keys where none is listed, else 0; the other operands. They have four
 * dimensions. */
int distile_call_token_lists(distile_halide_function function, const distile_token_lists *lists,
                             const distile_kernel_call *call);

#ifdef __cplusplus
}
#endif

#endif
