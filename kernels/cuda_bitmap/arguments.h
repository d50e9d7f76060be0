/** \file
 * The arguments of the kernels in bitmap.cuh, shared by the host and the device. Addresses are of the device.
 */
#ifndef DISTILE_CUDA_BITMAP_ARGUMENTS_H
#define DISTILE_CUDA_BITMAP_ARGUMENTS_H

#include "kernels/bitmap.h"
#include "kernels/cuda_call.h"
#include "kernels/cuda_tensor.h"
#include <cstdint>

namespace distile::cuda_bitmap {

constexpr int32_t lanes = 32, warps = 8, threads = warps * lanes;

/** The output pixels of the blocks of the kernels distile_bitmap_TYPE_PIXELS. */
#define DISTILE_CUDA_BITMAP_PIXELS(ROW) ROW(8) ROW(16) ROW(32) ROW(64)
constexpr int32_t most_pixels = 64, most_channels = warps * DISTILE_BITMAP_ROWS;

/** Pieces of the input that are staged at once, each of some units along the reduction: 16 KB. */
constexpr int32_t pieces = 2, piece_bytes = most_pixels * DISTILE_BITMAP_COLUMNS * 2;
constexpr int32_t piece_units_of(int32_t pixels) {
    return most_pixels / pixels;
}
/** Warps that share the rows of a unit, each with units of its own. */
constexpr int32_t parts_of(int32_t channels) {
    return most_channels / channels;
}
/** Whether kernels have blocks of as many output pixels and channels. */
constexpr bool has_blocks(int32_t pixels, int32_t channels) {
    const bool are_known = (pixels == 8 || pixels == 16 || pixels == 32 || pixels == 64) &&
                           (channels == 16 || channels == 32 || channels == 64 || channels == 128);
    return are_known && parts_of(channels) <= pieces * piece_units_of(pixels);
}

/** The values of a lane's weights of a unit; the last row is read, but not used. */
constexpr int32_t value_rows = 64 + 1;
/** The bytes of shared memory of a block: those of its SharedMemory. */
constexpr int32_t shared_bytes = pieces * piece_bytes + warps * value_rows * lanes * 4 + most_pixels * 16 + 16;
/** The bytes of the sums of a block. */
constexpr int64_t part_bytes(int32_t pixels, int32_t channels) {
    return int64_t{pixels} * channels * 4;
}

/** The output pixels of a tile and of an image along an axis. */
struct Axis {
    int32_t tile, extent;
};

/** The arrays of the weights (distile_cuda_bitmap_weights). */
struct Weights {
    const uint32_t *bits, *starts;
    const char *values;
};

struct Arguments : CudaCall, CudaSplits {
    CudaTensor input, residual, output;  ///< `residual.data` is null if there is none.
    Weights weights;
    const float *bias;
    Axis rows, columns;
    int32_t in_channels, out_channels;
    int32_t units;         ///< Units along the reduction.
    int32_t channels;      ///< Output channels of a block.
    int32_t reads_whole;   ///< 1: eight neighbouring channels of the input may be read at once.
    int32_t writes_whole;  ///< 1: four neighbouring channels of the output and the residual may be, too.
    int32_t ahead;         ///< Units whose weights are fetched to the L2 cache before they are needed; 0: none.
};
static_assert(sizeof(Arguments) <= 4096);

}  // namespace distile::cuda_bitmap

#endif
