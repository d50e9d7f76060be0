// The kernels around the operators': bytes to bits, counts and lists of tiles, and zeros. Compiled to PTX, which
// the library holds.
#include "mask_kernels.h"
#include <cstdint>

using namespace distile;

namespace {

/** True if a tile has an active pixel. Bits beyond the width are 0. */
__device__ bool is_active(const DeviceBits &mask, const TileGrid &grid, uint32_t tile, int &x, int &y, int &image) {
    const uint32_t row = tile / grid.columns;
    x = static_cast<int>(tile % grid.columns) * grid.tile_w;
    y = static_cast<int>(row % grid.rows) * grid.tile_h;
    image = static_cast<int>(row / grid.rows);
    const int end_x = min(x + grid.tile_w, mask.width), end_y = min(y + grid.tile_h, mask.height);
    const int first = x / 32, last = (end_x - 1) / 32;
    const uint32_t first_bits = ~0u << (x % 32), last_bits = ~0u >> (31 - (end_x - 1) % 32);
    for (int v = y; v < end_y; v++) {
        const uint32_t *words = mask.words + (static_cast<int64_t>(image) * mask.height + v) * mask.words_per_row;
        for (int i = first; i <= last; i++) {
            const uint32_t kept = (i == first ? first_bits : ~0u) & (i == last ? last_bits : ~0u);
            if ((words[i] & kept) != 0) {
                return true;
            }
        }
    }
    return false;
}

/** The sum of a number of every thread of the block, in all of them. */
__device__ uint32_t block_sum(uint32_t value, uint32_t *shared) {
    for (int step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(~0u, value, step);
    }
    if (threadIdx.x % 32 == 0) {
        shared[threadIdx.x / 32] = value;
    }
    __syncthreads();
    uint32_t sum = 0;
    for (int i = 0; i < mask_threads / 32; i++) {
        sum += shared[i];
    }
    __syncthreads();
    return sum;
}

}  // namespace

/** A warp packs words_per_warp words. Also clears the counts of tiles, which belong to the mask that was. */
extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_pack_bits(const uint8_t *bytes, int64_t stride_n, int64_t stride_h, DeviceBits mask, uint32_t num_words,
                      uint32_t *words, uint32_t *counts) {
    if (blockIdx.x == 0 && threadIdx.x < most_counts) {
        counts[threadIdx.x] = 0;
    }
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t first = (blockIdx.x * (mask_threads / 32) + threadIdx.x / 32) * words_per_warp;
    bool active[words_per_warp];
#pragma unroll
    for (uint32_t i = 0; i < words_per_warp; i++) {
        const uint32_t word = first + i, row = word / mask.words_per_row, x = word % mask.words_per_row * 32 + lane;
        active[i] = word < num_words && x < static_cast<uint32_t>(mask.width) &&
                    bytes[row / mask.height * stride_n + row % mask.height * stride_h + x] != 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < words_per_warp; i++) {
        const uint32_t word = __ballot_sync(~0u, active[i]);
        if (lane == i && first + i < num_words) {
            words[first + i] = word;
        }
    }
}

/** Counts the active tiles of grid.count[blockIdx.y], in all and in each block's share. */
extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_count_tiles(DeviceBits mask, TileGrids grids, uint32_t *counts) {
    const TileGrid &grid = grids.grids[blockIdx.y];
    const uint32_t first = blockIdx.x * tiles_per_block;
    if (first >= grid.tiles) {
        return;
    }
    uint32_t found = 0;
    for (uint32_t i = 0; i < tiles_per_block / mask_threads; i++) {
        const uint32_t tile = first + i * mask_threads + threadIdx.x;
        int x, y, image;
        found += tile < grid.tiles && is_active(mask, grid, tile, x, y, image) ? 1 : 0;
    }
    __shared__ uint32_t shared[mask_threads / 32];
    const uint32_t sum = block_sum(found, shared);
    if (threadIdx.x == 0) {
        grid.block_counts[blockIdx.x] = sum;
        atomicAdd(&counts[grid.slot], sum);
    }
}

/** Lists the active tiles of one grid in its order. */
extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_list_tiles(DeviceBits mask, TileGrid grid, uint32_t *xy, uint32_t *images) {
    __shared__ uint32_t shared[mask_threads / 32];
    uint32_t before = 0;
    for (uint32_t i = threadIdx.x; i < blockIdx.x; i += mask_threads) {
        before += grid.block_counts[i];
    }
    before = block_sum(before, shared);

    constexpr uint32_t tiles_per_thread = tiles_per_block / mask_threads;
    const uint32_t first = blockIdx.x * tiles_per_block + threadIdx.x * tiles_per_thread;
    uint32_t tile_xy[tiles_per_thread], tile_image[tiles_per_thread], found = 0;
#pragma unroll
    for (uint32_t i = 0; i < tiles_per_thread; i++) {
        int x = 0, y = 0, image = 0;
        const bool active = first + i < grid.tiles && is_active(mask, grid, first + i, x, y, image);
        tile_xy[i] = active ? static_cast<uint32_t>(x) | static_cast<uint32_t>(y) << 16 : ~0u;
        tile_image[i] = static_cast<uint32_t>(image);
        found += active ? 1 : 0;
    }
    // An inclusive sum over the warp, and the warps before it.
    uint32_t upto = found;
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, upto, step);
        upto += threadIdx.x % 32 >= step ? other : 0;
    }
    if (threadIdx.x % 32 == 31) {
        shared[threadIdx.x / 32] = upto;
    }
    __syncthreads();
    uint32_t at = before + upto - found;
    for (uint32_t i = 0; i < threadIdx.x / 32; i++) {
        at += shared[i];
    }
#pragma unroll
    for (uint32_t i = 0; i < tiles_per_thread; i++) {
        // No tile begins at 65535, 65535: extents end there.
        if (tile_xy[i] != ~0u) {
            xy[at] = tile_xy[i];
            images[at++] = tile_image[i];
        }
    }
}

/** Zeroes the inactive pixels, a warp each. `Vector` is what a thread stores at once. */
template<typename Vector> __device__ void zero_inactive(const DeviceBits &mask, Vector *output, int64_t stride_n,
                                                        int64_t stride_h, int64_t stride_w, int channels,
                                                        uint32_t num_pixels) {
    const uint32_t warps = gridDim.x * (mask_threads / 32);
    for (uint32_t pixel = blockIdx.x * (mask_threads / 32) + threadIdx.x / 32; pixel < num_pixels; pixel += warps) {
        const uint32_t row = pixel / mask.width, x = pixel % mask.width;
        if ((mask.words[static_cast<int64_t>(row) * mask.words_per_row + x / 32] >> (x % 32) & 1) == 0) {
            Vector *to = output + row / mask.height * stride_n + row % mask.height * stride_h + x * stride_w;
            for (int i = threadIdx.x % 32; i < channels; i += 32) {
                to[i] = Vector{};
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_zero_inactive_1(DeviceBits mask, float *output, int64_t stride_n, int64_t stride_h, int64_t stride_w,
                            int channels, uint32_t num_pixels) {
    zero_inactive(mask, output, stride_n, stride_h, stride_w, channels, num_pixels);
}

/** Strides and channels in vectors of 4. */
extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_zero_inactive_4(DeviceBits mask, float4 *output, int64_t stride_n, int64_t stride_h, int64_t stride_w,
                            int channels, uint32_t num_pixels) {
    zero_inactive(mask, output, stride_n, stride_h, stride_w, channels, num_pixels);
}
