/** \file
 * The arguments of the kernels for tensor cores, shared by the host and the device. Addresses are of the device.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ARGUMENTS_H
#define DISTILE_CUDA_TENSOR_CORE_ARGUMENTS_H

#include "runtime/choice/choice.h"
#include <cstdint>

namespace distile::tensor_core {

/** The most pixels of a mask that needs no list of tiles: each block finds the active pixels in the bits. */
constexpr uint32_t listless_pixels = 4096;

/** The most blocks that share a reduction if the work is balanced. More would spend more time on sums than they save.
 */
constexpr int32_t most_sharers = 4;
/** About what the sums of shares cost, in steps of a block. Blocks share work only if that saves more. */
constexpr uint32_t sharing_steps = 12;

/** The most variants of a kernel, so that a launch's arguments fit the 4 KB that every driver takes. */
constexpr int32_t most_variants = 16;

/** How sums of a quantized operator become results: a distile_requantization. Behind it come the offsets and then the
 * multipliers of the output channels, which fill blocks of 16, and then zero points of the input. */
struct Requantization {
    static constexpr int channel_block = 16, zero_point_bytes = 4096;

    int32_t input_zero_point, residual_zero_point, output_zero_point;
    float residual_factor, output_factor;
    int32_t reserved[11];

    /** The channels, padded to whole blocks. */
    static constexpr int padded(int channels) {
        return (channels + channel_block - 1) / channel_block * channel_block;
    }
};

/** An activation, channels last. Strides in units of 16 bytes. */
struct Tensor {
    char *data;  ///< Pixel (0, 0) of image 0. A border lies before it.
    int32_t stride_w, stride_h, stride_n;
};

/** Tells hardware how to copy boxes of a tensor, as the driver encodes it. */
struct alignas(64) TensorMap {
    uint64_t words[16];
};

/** The work of one variant. */
struct Tiles {
    /** The map of the input with its border, for tiles that are copied in boxes. */
    TensorMap input_map;
    /** Tile t is at x | y << 16 = xy[t], in image xy[capacity + t]. Null: the tiles are the mask's pixels. */
    const uint32_t *xy;
    const uint32_t *count;
    int32_t capacity;
    uint32_t blocks;  ///< The blocks that share the work: the first ones of the launch.
};

/** What all variants of a kernel share. */
struct Arguments {
    Tensor input, residual, output;
    const char *weights;
    const float *bias;
    const char *requantization;  ///< Set for quantized operators.
    /** Rows and columns of the input that may be read; negative ones lie in its border. Others count as 0,
     * or as the input's zero point. */
    int32_t first_row, end_row, first_column, end_column;
    /** The mask: pixel (n, y, x) is bit x % 32 of bits[(n * height + y) * words_per_row + x / 32]. */
    const uint32_t *bits;
    int32_t words_per_row, height, width, batch;
    int32_t store_tiles;  ///< 1: store every pixel of the tiles, not only the active ones.
    float slope;          ///< The activation's, if it has one.
    /** If the work is balanced, unless sums have a fixed order: memory for the sums of shared items, BlockPixels x
     * BlockChannels for each block, and signals, one for each block and two more, which are 0 before and after a
     * launch. */
    float *parts;
    uint32_t *signals;
};

/** The arguments of a kernel with `Variants` variants. */
template<int32_t Variants> struct Launch {
    Arguments arguments;
    distile_gpu_choice choice;  ///< Among variants of this and of other kernels.
    Tiles tiles[Variants];
};
static_assert(sizeof(Launch<most_variants>) <= 4096);

}  // namespace distile::tensor_core

#endif
