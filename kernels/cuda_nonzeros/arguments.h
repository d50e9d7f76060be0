/** \file
 * The arguments of the kernels in nonzeros.cu, shared by the host and the device. Addresses are of the device.
 */
#ifndef DISTILE_CUDA_NONZEROS_ARGUMENTS_H
#define DISTILE_CUDA_NONZEROS_ARGUMENTS_H

#include "kernels/cuda_call.h"
#include "kernels/cuda_tensor.h"
#include "kernels/dot_products.h"
#include <cstdint>

namespace distile::cuda_nonzeros {

/** The blocks of the kernels distile_nonzeros_PIXELS_CHANNELS, in output pixels and channels. */
constexpr int32_t lanes = 32, most_pixels = 128, most_channels = 128;

/** Floats of staged input: one chunk for blocks of 128 pixels, as many as fit for smaller ones. */
constexpr int32_t staged_floats = DISTILE_CUDA_CHUNK_STRIDE * most_pixels;
/** Numbers behind a row of the output in shared memory, so that its rows begin in other banks. */
constexpr int32_t output_padding = 4;
/** Floats that hold what is staged, and later the output. */
constexpr int32_t pool_floats = most_channels * (most_pixels + output_padding);
static_assert(pool_floats >= staged_floats);

/* clang-format off */
#define DISTILE_CUDA_NONZERO_KERNELS(ROW) \
    ROW(32, 16) ROW(32, 32) ROW(32, 64) ROW(32, 128) \
    ROW(64, 16) ROW(64, 32) ROW(64, 64) ROW(64, 128) \
    ROW(128, 16) ROW(128, 32) ROW(128, 64) ROW(128, 128)
/* clang-format on */

/** The warps of a block, and the blocks that a multiprocessor should hold. */
constexpr int32_t warps_of(int32_t pixels, int32_t channels) {
    return channels >= 128 || (channels == 64 && pixels > 32) ? 16 : 8;
}
constexpr int32_t blocks_of(int32_t pixels, int32_t channels) {
    return pixels == 32 || warps_of(pixels, channels) == 16 ? 2 : 3;
}

/** The pairs of nonzeros that a row multiplies next, and the quads that are staged at a time. */
constexpr int32_t batch_pairs_of(int32_t pixels) {
    return pixels == most_pixels ? 32 : 16;
}
constexpr int32_t staged_quads_of(int32_t pixels) {
    return most_pixels / pixels * DISTILE_CUDA_CHUNK_COLUMNS / 4;
}
/** The bytes of shared memory of a block: those of its SharedMemory. */
constexpr int32_t shared_bytes(int32_t pixels, int32_t channels) {
    const int32_t rows = warps_of(pixels, channels) * (most_pixels / pixels);
    return pool_floats * 4 + rows * (batch_pairs_of(pixels) + 1) * 16 + staged_quads_of(pixels) * 16 + pixels * 8 +
           channels * 4 + 16;
}

/** The bytes of the sums of a block, four of a row for each lane and turn. */
constexpr int32_t part_bytes(int32_t pixels, int32_t channels) {
    const int32_t rows = warps_of(pixels, channels) * (most_pixels / pixels);
    return (channels + rows - 1) / rows * warps_of(pixels, channels) * lanes * 16;
}

/** The taps along an axis: output pixel i reads the input pixels stride * i + first + t * step. */
struct Axis {
    int32_t stride, first, step, taps;
    int32_t begin, end;    ///< The input pixels that may be read; negative ones lie in its border.
    int32_t tile, extent;  ///< The output pixels of a tile and of an image.
};

/** The arrays of the weights (distile_cuda_nonzero_weights). */
struct Weights {
    const int32_t *order;
    const uint32_t *starts;
    const char *pairs;
};

struct Arguments : CudaCall, CudaSplits {
    CudaTensor input, residual, output;  ///< `residual.data` is null if there is none.
    Weights weights;
    const float *bias;
    Axis rows, columns;
    int32_t in_channels, out_channels;        ///< Channels of the tensors.
    int32_t read_channels, section_channels;  ///< Input and output channels of a section.
    int32_t section_blocks;                   ///< Blocks of 16 output channels of a section.
    int32_t tap_quads, quads, chunks;         ///< Quads of a tap and of all taps; chunks of these.
    /** Divide by the quads of a tap, the columns of the filter, the parts of a section and the splits. */
    uint32_t quad_factor, column_factor, part_factor, split_factor;
    int32_t dtype;          ///< The type of the input, the residual and the output.
    int32_t reads_quads;    ///< 1: four neighbouring channels may be read at once.
    int32_t section_parts;  ///< Blocks of threads for a section.
};
static_assert(sizeof(Arguments) <= 4096);

}  // namespace distile::cuda_nonzeros

#endif
