/** \file
 * Dot products on CPUs and NVIDIA GPUs, and how their sums become results.
 */
#ifndef DISTILE_KERNELS_DOT_PRODUCTS_H
#define DISTILE_KERNELS_DOT_PRODUCTS_H

#include "kernels/call.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The taps of one phase along an axis: with `scale` phases, output pixel scale * i + p of phase p reads the input
 * pixels stride * i + first + t * step, 0 <= t < taps. */
typedef struct distile_taps {
    int32_t first, step, taps;
} distile_taps;

/** A variant for dot-product or matrix instructions of CPUs, or for dot products on NVIDIA GPUs. */
typedef struct distile_dot_product_code {
    distile_activation epilogue;
    int32_t tile_h, tile_w;               /**< Granularity in output pixels. */
    int32_t block_pixels, block_channels; /**< Output pixels and channels whose sums are held in registers. */
    int32_t staged_blocks;                /**< Blocks of pixels that a task stages at a time. */
    int32_t channel_splits;               /**< Parts into which the output channels are split for the threads. */
    int32_t scale_h, scale_w;             /**< Phases along each axis; 1 for convolutions and linear layers. */
    int32_t stride_h, stride_w;
    /** Sections of the output channels begin with a block of 16 in the weights. */
    int32_t read_channels;    /**< Input channels that a section reads; 0: each output channel reads its own. */
    int32_t section_channels; /**< Output channels of a section. */
    /** Groups of a section that vectors keep apart: each of their lanes multiplies what its group reads alone. 1: all
     * that the section reads. */
    int32_t apart_groups;
    const distile_taps *rows, *columns; /**< The taps of each phase. */
    int32_t reduction_splits;           /**< Parts of the reduction, for blocks of a GPU that share an output; 0: 1. */
} distile_dot_product_code;

/** Computes the tiles of the call. The operands are the input, the weights in the layout "cpu-k32", the bias, the
 * residual if there is one, and the output, and all but the bias are bfloat16, or where the name ends in fp16, float16.
 * Every PolyKernel with such code holds its own copy of the functions that it calls. */
int distile_call_avx512_bf16(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_amx_bf16(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_amx_fp16(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_amx_split_fp16(const distile_dot_product_code *code, const distile_kernel_call *call);

/** Bytes that hold the zero point, which code for GPUs copies in place of what lies beyond the input. Many copies of
 * one cache line would wait for each other. */
#define DISTILE_ZERO_POINT_BYTES 4096

/** How sums of quantized products become results. Behind it, for each phase and then each output channel, come int32_t
 * offsets, and then for each output channel float32 multipliers; the channels fill blocks of 16. On GPUs, the zero
 * point of the input follows in each of DISTILE_ZERO_POINT_BYTES bytes. With the sum over the inputs x (on CPUs as
 * unsigned numbers: those of int8 plus 128) and the weights w:
 *
 *     value = float32(sum of x * w + offset) * multiplier + bias [+ (residual - zero point) * residual_factor]
 *     output = round(epilogue(value) * output_factor) + output_zero_point
 *
 * Integers wrap around. Numbers are rounded to nearest even, and outputs saturate. An output of float32 is
 * epilogue(value), and its residual is added as it is. */
typedef struct distile_requantization {
    int32_t input_zero_point, residual_zero_point, output_zero_point;
    float residual_factor, output_factor;
    int32_t reserved[11];
} distile_requantization;

/** Compute as the functions above do, for inputs of DISTILE_UINT8 or DISTILE_INT8, weights of DISTILE_INT8 or
 * DISTILE_INT4 in the layout "cpu-k64", and an output and a residual of one of the input's types or of DISTILE_FLOAT32.
 * All give the same bits. 64 bytes hold 128 weights of 4 bits: the low halves the first 64. There is no depthwise
 * convolution by AMX. */
int distile_call_avx512_vnni(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_amx_int8(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_avx_vnni(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_avx2_int8(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_portable_int8(const distile_dot_product_code *code, const distile_kernel_call *call);

/** Output channels of a block of nonzero weights. */
#define DISTILE_NONZERO_BLOCK 64

/** The layout "cpu-nonzeros": this header, and four arrays behind it, in words of 32 bits that are declared as
 * DISTILE_FLOAT32. The input channels are cut into chunks, the output channels into blocks, and a part is what lies in
 * one chunk and one block, [chunk][block]. The members with the arrays' names are the words where they begin:
 *
 *     parts     int32_t indices of each part's first row, first column and first value, and of an end behind the last
 *               part's
 *
 *     rows      uint32_t: an output channel in its block | 1, 2 or 4 channels that share columns << 8 | whether sums
 *               are added to << 15 | the number of columns << 16. The other channels follow, a word each. A part that
 *               lists a channel again adds to its sums, and so do the parts of all chunks but the first. Those of the
 *               first list all channels, up to a multiple of 16, others those with a nonzero. Channels that share
 *               columns come first, then the shortest rows
 *
 *     columns   uint16_t: the place of a nonzero, (kernel row * kernel columns + kernel column) * channels + the input
 *               channel in its chunk
 *
 *     values    float: of each column one for each of the channels that share it
 */
typedef struct distile_nonzero_weights {
    int32_t channels, chunks; /**< Input channels of a chunk, a multiple of 16; chunks. */
    int32_t blocks;           /**< Blocks of DISTILE_NONZERO_BLOCK output channels. */
    int32_t parts, rows, columns, values;
    int32_t reserved[9];
} distile_nonzero_weights;

/** The layout "cpu-nonzero-quads", for quantized operators: the same header and arrays, where four consecutive input
 * channels take the place of one, and a value is a quad of four int8_t, which multiply these channels in order. The
 * channels of all groups are counted together; a quad that lies in several groups has zeros for all but one. Quads
 * without a nonzero weight are left out.
 *
 * Compute with these quads alone what distile_call_avx512_vnni and the functions beside it compute with all weights, to
 * the bit. */
int distile_call_avx512_vnni_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_avx_vnni_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_avx2_int8_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_portable_int8_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call);

/** Compute with the nonzero weights alone, of inputs, residuals and outputs of DISTILE_FLOAT32, DISTILE_FLOAT16 or
 * DISTILE_BFLOAT16. Sums are float32. A block of pixels fills vectors of 16, 8 or 4 pixels; where a tile is such a
 * block, one vector wide, and the taps of a column are neighbours, its pixels share what they read. */
int distile_call_avx512_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_avx2_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_portable_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call);

/** Output channels of a block of the layout "cuda-nonzeros", the columns of a chunk, and the columns from one staged
 * chunk to the next: a column of zeros is behind each. */
#define DISTILE_CUDA_NONZERO_BLOCK 16
#define DISTILE_CUDA_CHUNK_COLUMNS 128
#define DISTILE_CUDA_CHUNK_STRIDE (DISTILE_CUDA_CHUNK_COLUMNS + 1)

/** The layout "cuda-nonzeros": this header, and three arrays behind it, in words of 32 bits that are declared as
 * DISTILE_FLOAT32. Sections of the output channels (ChannelSections, of packs of one) begin with a block, and blocks
 * are filled up. The reduction of a section runs over the kernel's rows, its columns and quads of four of the input
 * channels that the section reads, the last filled up; 32 quads are a chunk. The members with the arrays' names are the
 * words where they begin:
 *
 *     order     int32_t: which channel of its block a row is, [block][row]. Rows with most nonzeros come first
 *
 *     starts    uint32_t: the first pair of a row in a chunk, [block][row][chunk], and the end of the last row's
 *
 *     pairs     of nonzeros: uint32_t, float, uint32_t, float: the place of each, and its value. A row that has an odd
 *               number in a chunk ends with the chunk's column of zeros. As many pairs as a warp reads at once follow
 *               the last.
 *
 * A place is that of the column in what is staged for 32 pixels, in bytes, with the bits by which its pixels are
 * swizzled: (chunk * 129 + column) * 128 | quad % 8 * 16.
 */
typedef struct distile_cuda_nonzero_weights {
    int64_t nonzeros;
    int32_t order, starts, pairs;
    int32_t reserved[11];
} distile_cuda_nonzero_weights;

/** Computes with the nonzero weights alone, on an NVIDIA GPU of compute capability 8.0 or later, of inputs, residuals
 * and outputs of DISTILE_FLOAT32, DISTILE_FLOAT16 or DISTILE_BFLOAT16. Sums are float32. A block of threads computes
 * block_pixels x block_channels, 32, 64 or 128 x 16, 32, 64 or 128. */
int distile_call_cuda_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call);

/** Computes as the functions for DISTILE_INT8 do, on an NVIDIA GPU of compute capability 7.5 or later, with weights of
 * DISTILE_INT8 in the layout "cuda-k64". A block of threads computes block_pixels x block_channels, 32 or 128 x 16
 * or 64. */
int distile_call_dp4a(const distile_dot_product_code *code, const distile_kernel_call *call);

#ifdef __cplusplus
}
#endif

#endif
