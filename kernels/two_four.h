/** \file
 * Layers on NVIDIA GPUs whose weights have at most two nonzeros in four consecutive input channels (the pattern 2:4),
 * by sparse tensor cores.
 */
#ifndef DISTILE_KERNELS_TWO_FOUR_H
#define DISTILE_KERNELS_TWO_FOUR_H

#include "kernels/dot_products.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The layout "cuda-two-four": units of 64 output channels and 64 input channels of a kernel position, [64 output
 * channels][kernel position][64 input channels], in words of 32 bits that are declared as DISTILE_FLOAT32. Zeros fill
 * the last units. Two of each four input channels are kept, in their order: all that are not 0, and others. A unit is
 *
 *     values    of each output channel a line of 64 bytes, its 32 kept values of 16 bits in the type of the input. The
 *               lines' four pieces of 16 bytes are swizzled: piece p of line l is at p ^ l / 2 % 4
 *
 *     places    of each 16 output channels 32 words, one for each lane of a warp. Lane l has the rows l / 4 and
 *               l / 4 + 8, in the low and the high half, and in each the places of the kept values of 16 input
 * channels, those from l % 4 * 16 on. A place has two bits: which of the four input channels it is
 *
 * so that a unit is what m64n*k32 and m16n8k32 multiply in two steps, where lanes 0 and 1 of four have the places of
 * the first one, and 2 and 3 those of the second. */
#define DISTILE_TWO_FOUR_ROWS 64
#define DISTILE_TWO_FOUR_COLUMNS 64
#define DISTILE_TWO_FOUR_VALUE_BYTES 4096
#define DISTILE_TWO_FOUR_UNIT_BYTES 4608

/** Compute a convolution without groups or a linear layer of DISTILE_FLOAT16 or DISTILE_BFLOAT16, whose channels are
 * multiples of 8 and whose kernel has at most 16 x 16 positions, from weights in that layout. Sums are float32. A block
 * of threads computes block_pixels x block_channels. The first one is for NVIDIA GPUs of compute capability 8.0 and
 * later, with blocks of 64 or 128 x 64 or 128; the second one for 9.0 alone, also with blocks of 256 x 128 and
 * 128 x 256. */
int distile_call_cuda_two_four(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_cuda_two_four_sm90(const distile_dot_product_code *code, const distile_kernel_call *call);

#ifdef __cplusplus
}
#endif

#endif
