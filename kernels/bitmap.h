/** \file
 * Linear layers with pruned weights of 16 bits on NVIDIA GPUs: a bit for each weight, and the values of those that are
 * not 0.
 */
#ifndef DISTILE_KERNELS_BITMAP_H
#define DISTILE_KERNELS_BITMAP_H

#include "kernels/dot_products.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Rows and columns of a unit of the layout "cuda-bitmap", and the values of a granule. */
#define DISTILE_BITMAP_ROWS 16
#define DISTILE_BITMAP_COLUMNS 128
#define DISTILE_BITMAP_GRANULE 4

/** The layout "cuda-bitmap": this header, and three arrays behind it, in words of 32 bits that are declared as
 * DISTILE_FLOAT32. Rows are output channels, columns input channels, both filled up to whole units of 16 x 128. The
 * units of 16 rows stand one after the other. Each of the 32 lanes of a warp has 64 weights of a unit, as factors of
 * m16n8k16: 8 steps of 4 pairs. Lane l has the rows l / 4 and l / 4 + 8. Pair p of step s is in the first row if p is
 * even, and begins in column s / 2 * 32 + l % 4 * 8 + s % 2 * 4 + p / 2 * 2. The members with the arrays' names are the
 * words where they begin:
 *
 *     bits      of each unit two words for each lane, [unit][lane][2]: which weights are not 0. The 8 pairs of steps
 *               2 * i and 2 * i + 1 have half i % 2 of word i / 2. Its low byte has the first weights of the pairs in
 *               order, its high byte the second ones
 *
 *     starts    uint32_t: the first granule of each unit, and the end of the last one's
 *
 *     values    granules of four values of 16 bits, in the type of the input. The values of a lane are in the order of
 *               steps, pairs and the weights in them, and zeros fill its last granule. First come the first granules of
 *               all lanes that have one, in the order of the lanes, then all second ones, and so on. A granule of zeros
 *               follows the last unit
 */
typedef struct distile_cuda_bitmap_weights {
    int64_t nonzeros;
    int32_t bits, starts, values;
    int32_t reserved[27]; /**< The bits begin with a line of the cache. */
} distile_cuda_bitmap_weights;

/** Computes a linear layer of DISTILE_FLOAT16 or DISTILE_BFLOAT16 by tensor cores, on an NVIDIA GPU of compute
 * capability 8.0 or later, from weights in that layout. Sums are float32. A block of threads computes block_pixels x
 * block_channels, 8, 16, 32 or 64 x 16, 32, 64 or 128, where 32 pixels have at least 32 channels and 64 pixels 64.
 * Weights of as many units as staged_blocks says are fetched ahead. */
int distile_call_cuda_bitmap(const distile_dot_product_code *code, const distile_kernel_call *call);

#ifdef __cplusplus
}
#endif

#endif
