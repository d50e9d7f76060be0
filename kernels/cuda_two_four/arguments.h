/** \file
 * The arguments of the kernels in two_four.cuh, shared by the host and the device. Addresses are of the device.
 */
#ifndef DISTILE_CUDA_TWO_FOUR_ARGUMENTS_H
#define DISTILE_CUDA_TWO_FOUR_ARGUMENTS_H

#include "kernels/cuda_call.h"
#include "kernels/cuda_tensor.h"
#include "kernels/two_four.h"
#include "runtime/choice/choose_variant.h"
#include <cstdint>

namespace distile::cuda_two_four {

/** The instructions that multiply: m16n8k32 of compute capability 8.0 and later, or m64nNk32 of 9.0 alone. */
enum class Cores { Sm80, Sm90 };

/** The output pixels and channels of the blocks of the kernels distile_two_four_CORES_TYPE_PIXELS_CHANNELS. */
#define DISTILE_TWO_FOUR_SM80_BLOCKS(ROW) ROW(64, 64) ROW(64, 128) ROW(128, 64) ROW(128, 128)
#define DISTILE_TWO_FOUR_SM90_BLOCKS(ROW)                                                                              \
    ROW(64, 64) ROW(64, 128) ROW(128, 64) ROW(128, 128) ROW(128, 256) ROW(256, 128)

constexpr bool has_blocks(Cores cores, int32_t pixels, int32_t channels) {
    int32_t found = 0;
#define DISTILE_ROW(row_pixels, row_channels) found += pixels == (row_pixels) && channels == (row_channels) ? 1 : 0;
    if (cores == Cores::Sm80) {
        DISTILE_TWO_FOUR_SM80_BLOCKS(DISTILE_ROW)
    } else {
        DISTILE_TWO_FOUR_SM90_BLOCKS(DISTILE_ROW)
    }
#undef DISTILE_ROW
    return found > 0;
}

/** Kernel positions along an axis whose inputs a thread remembers to be there or not. */
constexpr int32_t most_taps = 16;

/** What a multiprocessor runs, and the launch of a kernel. */
struct Block {
    Cores cores;
    int32_t pixels, channels;

    DISTILE_ANYWHERE constexpr bool is_sm90() const {
        return cores == Cores::Sm90;
    }
    DISTILE_ANYWHERE constexpr int32_t units() const {
        return channels / DISTILE_TWO_FOUR_ROWS;
    }
    /** Blocks of a cluster have other pixels and share the weights. */
    DISTILE_ANYWHERE constexpr int32_t cluster() const {
        return !is_sm90() ? 1 : pixels == 64 ? 4 : 2;
    }
    /** On 9.0, groups of four warps multiply some 64 output channels and all pixels. */
    DISTILE_ANYWHERE constexpr int32_t groups() const {
        return units() < 2 ? units() : 2;
    }
    /** On 9.0, four more copy. Before, each of four multiplies 64 output channels and some pixels. */
    DISTILE_ANYWHERE constexpr int32_t warps() const {
        return is_sm90() ? 4 * (groups() + 1) : 4;
    }
    DISTILE_ANYWHERE constexpr int32_t threads() const {
        return 32 * warps();
    }
    /** Blocks that a multiprocessor holds. */
    DISTILE_ANYWHERE constexpr int32_t resident() const {
        return is_sm90() ? 1 : 2;
    }
    /** The bytes of a stage: 64 input channels of each pixel, and of the weights. Both begin with whole swizzled
     * groups.
     */
    DISTILE_ANYWHERE constexpr int32_t input_bytes() const {
        return pixels * DISTILE_TWO_FOUR_COLUMNS * 2;
    }
    DISTILE_ANYWHERE constexpr int32_t stage_bytes() const {
        constexpr int32_t alignment = 1024;
        return input_bytes() + (units() * DISTILE_TWO_FOUR_UNIT_BYTES + alignment - 1) / alignment * alignment;
    }
    DISTILE_ANYWHERE constexpr int32_t stages() const {
        const int32_t fit = ((is_sm90() ? 227 * 1024 : 80 * 1024) - other_bytes()) / stage_bytes();
        const int32_t most = is_sm90() ? 8 : 5;
        return fit < most ? fit : most;
    }
    /** The bytes of the sums of a block. */
    DISTILE_ANYWHERE constexpr int64_t part_bytes() const {
        return int64_t{pixels} * channels * 4;
    }
    /** The bytes of shared memory of a block. */
    DISTILE_ANYWHERE constexpr int32_t shared_bytes() const {
        return stages() * stage_bytes() + other_bytes();
    }

private:
    /** Beside stages: of each pixel where it is, twice on 9.0, or what it reads; there also barriers, and what warps
     * store. */
    DISTILE_ANYWHERE constexpr int32_t other_bytes() const {
        constexpr int32_t of_pixel = 16, of_warp = 16 * 20 * 4, others = 256;
        return pixels * of_pixel + (is_sm90() ? 4 * groups() * of_warp : 0) + others;
    }
};

/** The input pixels that an output pixel reads along an axis, and the output pixels of a tile and of an image. */
struct Axis {
    int32_t stride, first, step, taps;
    int32_t begin, end;  ///< Where the input may be read.
    int32_t tile, extent;
};

struct Arguments : CudaCall, CudaSplits {
    CudaTensor input, residual, output;  ///< `residual.data` is null if there is none.
    /** The distances in the input, in 16 bytes. */
    int32_t input_n, input_h, input_w;
    const char *weights;
    const float *bias;
    Axis rows, columns;
    int32_t in_channels, out_channels;
    uint32_t channel_blocks;  ///< Blocks of output channels. Their blocks of threads are neighbours.
    int32_t row_units;        ///< Units of 64 output channels.
    int32_t channel_units;    ///< Units of 64 input channels of a kernel position.
    int32_t steps;            ///< Units along the reduction.
};
static_assert(sizeof(Arguments) <= 4096);

}  // namespace distile::cuda_two_four

#endif
