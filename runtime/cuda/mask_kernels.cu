// The kernels around the operators': bytes to bits, counts and lists of tiles, zeros and masked copies. Compiled to
// PTX, which the library holds.
#include "mask_kernels.h"
#include <cstdint>

using namespace distile;

namespace {

constexpr uint32_t all_lanes = ~0u;

__device__ uint32_t lane() {
    return threadIdx.x % 32;
}

__device__ uint32_t divide(uint32_t number, const Divisor &by) {
    return by.value == 1 ? number : __umulhi(number, by.multiplier) >> by.shift;
}

__device__ uint32_t warp_sum(uint32_t value) {
    for (int step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(all_lanes, value, step);
    }
    return value;
}

/** True if this lane's pixel of a word is active. */
__device__ bool is_set(const MaskBytes &bytes, int32_t width, uint32_t word) {
    const uint32_t row = divide(word, bytes.words_per_row), image = divide(row, bytes.height);
    const uint32_t x = (word - row * bytes.words_per_row.value) * 32 + lane(), y = row - image * bytes.height.value;
    return word < bytes.num_words && x < static_cast<uint32_t>(width) &&
           bytes.bytes[image * bytes.stride_n + y * bytes.stride_h + x] != 0;
}

/** The origin of a tile. */
struct Tile {
    int32_t x, y, image;
};

__device__ Tile tile_at(const TileGrid &grid, uint32_t tile) {
    const uint32_t row = divide(tile, grid.columns), image = divide(row, grid.rows);
    return {static_cast<int32_t>(tile - row * grid.columns.value) * grid.tile_w,
            static_cast<int32_t>(row - image * grid.rows.value) * grid.tile_h, static_cast<int32_t>(image)};
}

/** True if a tile has an active pixel. Bits beyond the width are 0. */
__device__ bool is_active(const DeviceBits &mask, const TileGrid &grid, uint32_t index) {
    if (grid.tile_h == 1 && grid.tile_w == 1) {
        const uint32_t row = divide(index, grid.columns), x = index - row * grid.columns.value;
        return (mask.words[row * mask.words_per_row + x / 32] >> (x % 32) & 1) != 0;
    }
    const Tile tile = tile_at(grid, index);
    const int32_t end_x = min(tile.x + grid.tile_w, mask.width), end_y = min(tile.y + grid.tile_h, mask.height);
    const int32_t first = tile.x / 32, last = (end_x - 1) / 32;
    const uint32_t first_bits = ~0u << (tile.x % 32), last_bits = ~0u >> (31 - (end_x - 1) % 32);
    // A mask has fewer than 2^31 words.
    const uint32_t *words = mask.words + (tile.image * mask.height + tile.y) * mask.words_per_row;
    for (int32_t y = tile.y; y < end_y; y++, words += mask.words_per_row) {
        for (int32_t i = first; i <= last; i++) {
            const uint32_t kept = (i == first ? first_bits : ~0u) & (i == last ? last_bits : ~0u);
            if ((words[i] & kept) != 0) {
                return true;
            }
        }
    }
    return false;
}

/** The active tiles of a warp's groups of 32, from tile `first` on: a lane gets the bits of the group of its number. */
__device__ uint32_t find_tiles(const DeviceBits &mask, const TileGrid &grid, uint32_t first) {
    uint32_t bits = 0;
#pragma unroll 4
    for (uint32_t group = 0; group < grid.groups; group++) {
        const uint32_t tile = first + group * 32 + lane();
        const uint32_t found = __ballot_sync(all_lanes, tile < grid.tiles && is_active(mask, grid, tile));
        bits = lane() == group ? found : bits;
    }
    return bits;
}

/** Lists what find_tiles() found from entry `at` on. */
__device__ void write_tiles(const TileGrid &grid, uint32_t first, uint32_t bits, uint32_t at) {
#pragma unroll 4
    for (uint32_t group = 0; group < grid.groups; group++) {
        const uint32_t found = __shfl_sync(all_lanes, bits, group);
        if ((found >> lane() & 1) != 0) {
            const uint32_t entry = at + __popc(found & ((1u << lane()) - 1));
            const Tile tile = tile_at(grid, first + group * 32 + lane());
            grid.xy[entry] = static_cast<uint32_t>(tile.x) | static_cast<uint32_t>(tile.y) << 16;
            grid.images[entry] = static_cast<uint32_t>(tile.image);
        }
        at += __popc(found);
    }
}

// A state's upper half: its lower half is the count of the block alone, or that of it and all blocks before.
enum : unsigned long long { of_block = 1ull << 32, of_all = 2ull << 32 };

/** The tiles of all blocks before this one, for which a warp of it waits: the hardware starts blocks in their order,
 * so that each waits only for running ones. A state is one word, so that no reader sees half of it. */
__device__ uint32_t look_back(volatile unsigned long long *states, uint32_t count) {
    const uint32_t block = blockIdx.x;
    if (lane() == 0) {
        states[block] = (block == 0 ? of_all : of_block) | count;
    }
    uint32_t before = 0;
    for (int64_t end = block; end > 0; end -= 32) {
        const int64_t other = end - 1 - lane();
        unsigned long long state = of_all;
        do {
            state = other >= 0 ? states[other] : state;
        } while (__any_sync(all_lanes, state == 0));
        const uint32_t knowing = __ballot_sync(all_lanes, state >= of_all);
        // The nearest that knows all before it is the last one to add.
        const bool adds = knowing == 0 || lane() < static_cast<uint32_t>(__ffs(knowing));
        before += warp_sum(adds ? static_cast<uint32_t>(state) : 0);
        if (knowing != 0) {
            break;
        }
    }
    if (lane() == 0 && block > 0) {
        states[block] = of_all | (before + count);
    }
    return before;
}

}  // namespace

/** A warp packs words_per_warp words. Also clears the states of the grids that will be listed. */
extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_pack_bits(MaskBytes bytes, DeviceBits mask, TileGrids grids, uint32_t num_grids, uint32_t *words) {
    for (uint32_t i = 0; i < num_grids; i++) {
        const TileGrid &grid = grids.grids[i];
        for (uint32_t j = blockIdx.x * mask_threads + threadIdx.x; j < grid.blocks; j += gridDim.x * mask_threads) {
            grid.states[j] = 0;
        }
    }
    const uint32_t first = (blockIdx.x * (mask_threads / 32) + threadIdx.x / 32) * words_per_warp;
    bool active[words_per_warp];
#pragma unroll
    for (uint32_t i = 0; i < words_per_warp; i++) {
        active[i] = is_set(bytes, mask.width, first + i);
    }
#pragma unroll
    for (uint32_t i = 0; i < words_per_warp; i++) {
        const uint32_t word = __ballot_sync(all_lanes, active[i]);
        if (lane() == i && first + i < bytes.num_words) {
            words[first + i] = word;
        }
    }
}

/** Counts the active tiles of grids[blockIdx.y] and lists them in their order. */
extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_list_tiles(DeviceBits mask, TileGrids grids, uint32_t *counts) {
    const TileGrid &grid = grids.grids[blockIdx.y];
    if (blockIdx.x >= grid.blocks) {
        return;
    }
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t first = (blockIdx.x * (mask_threads / 32) + warp) * 32 * grid.groups;
    const uint32_t bits = find_tiles(mask, grid, first);
    const uint32_t count = warp_sum(__popc(bits));
    __shared__ uint32_t warp_counts[mask_threads / 32], before_block;
    if (lane() == 0) {
        warp_counts[warp] = count;
    }
    __syncthreads();
    const uint32_t other = lane() < mask_threads / 32 ? warp_counts[lane()] : 0;
    const uint32_t before_warp = warp_sum(lane() < warp ? other : 0);
    if (warp == 0) {
        const uint32_t found = warp_sum(other), before = look_back(grid.states, found);
        if (lane() == 0) {
            before_block = before;
            if (blockIdx.x == grid.blocks - 1) {
                counts[grid.slot] = before + found;
            }
        }
    }
    __syncthreads();
    if (grid.xy) {
        write_tiles(grid, first, bits, before_block + before_warp);
    }
}

namespace {

/** Updates pixels, a warp for a run of them. `Vector` is what a thread stores at once. Without words all pixels are
 * active. */
template<typename Vector> __device__ void update_pixels(const DeviceBits &mask, const PixelUpdate &update) {
    const uint32_t warps = gridDim.x * (mask_threads / 32);
    for (uint32_t run = blockIdx.x * (mask_threads / 32) + threadIdx.x / 32; run < update.num_runs; run += warps) {
        const uint32_t row = divide(run, update.runs), image = divide(row, update.height);
        const uint32_t x = (run - row * update.runs.value) * pixels_per_warp, y = row - image * update.height.value;
        const uint32_t pixels = min(pixels_per_warp, update.width - x);
        const uint32_t active = mask.words ? mask.words[row * mask.words_per_row + x / 32] >> (x % 32) : ~0u;
        Vector *to =
            static_cast<Vector *>(update.to) + image * update.stride_n + y * update.stride_h + x * update.stride_w;
        const Vector *from =
            static_cast<const Vector *>(update.from) + (static_cast<int64_t>(row) * update.width + x) * update.channels;
        for (uint32_t i = 0; i < pixels; i++, to += update.stride_w, from += update.channels) {
            const bool copy = (active >> i & 1) != 0;
            if (copy ? update.from != nullptr : update.zero != 0) {
                for (int32_t c = static_cast<int32_t>(lane()); c < update.channels; c += 32) {
                    to[c] = copy ? from[c] : Vector{};
                }
            }
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_update_pixels_1(DeviceBits mask, PixelUpdate update) {
    update_pixels<float>(mask, update);
}

extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_update_pixels_4(DeviceBits mask, PixelUpdate update) {
    update_pixels<float4>(mask, update);
}
