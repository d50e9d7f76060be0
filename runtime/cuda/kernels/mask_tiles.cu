// Counts and lists the active tiles of a mask.
#include "device.cuh"

using namespace distile;

namespace {

constexpr uint32_t warps = block_threads / 32;

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

/** The first tile of a warp. */
__device__ uint32_t first_of(const TileGrid &grid, uint32_t block, uint32_t warp) {
    return (block * warps + warp) * 32 * grid.groups;
}

/** The active tiles of a warp's groups of 32, from tile `first` on; lane i gets the bits of group i. */
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

/** The active tiles of a whole block, counted by one warp. */
__device__ uint32_t count_block(const DeviceBits &mask, const TileGrid &grid, uint32_t block) {
    const uint32_t begin = first_of(grid, block, 0), end = min(first_of(grid, block + 1, 0), grid.tiles);
    uint32_t count = 0;
#pragma unroll 1
    for (uint32_t tile = begin + lane(); tile < end; tile += 32) {
        count += is_active(mask, grid, tile) ? 1 : 0;
    }
    return warp_sum(count);
}

/** Writes the tiles that find_tiles() found, from entry `at` on. */
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

// The upper half of a state. The lower half is the count of the block alone, or including all blocks before.
enum : unsigned long long { of_block = 1ull << 32, of_all = 2ull << 32 };

/** The number of tiles of all blocks before this one, looked up by one warp. A state is one word, so no reader sees
 * half of it. CUDA promises no order in which blocks start, so no block may wait for another: after polling a silent
 * block `patience` times, the warp counts that block's tiles itself. */
__device__ uint32_t look_back(const DeviceBits &mask, const TileGrid &grid, uint32_t count, uint32_t patience) {
    volatile unsigned long long *const states = grid.states;
    const uint32_t block = blockIdx.x;
    if (lane() == 0) {
        states[block] = (block == 0 ? of_all : of_block) | count;
    }
    uint32_t before = 0;
    for (int64_t end = block; end > 0; end -= 32) {
        const int64_t other = end - 1 - lane();
        unsigned long long state = of_all;
        uint32_t looks = 0, silent = 0;
        do {
            state = other >= 0 ? states[other] : state;
            silent = __ballot_sync(all_lanes, state == 0);
        } while (silent != 0 && ++looks < patience);
#pragma unroll 1
        for (; silent != 0; silent &= silent - 1) {
            const uint32_t which = __ffs(silent) - 1, found = count_block(mask, grid, end - 1 - which);
            state = lane() == which ? of_block | found : state;
        }
        const uint32_t knowing = __ballot_sync(all_lanes, state >= of_all);
        // The nearest block that knows its whole prefix is the last one to add.
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

/** Counts the active tiles of grids[blockIdx.y] and lists them in order. */
extern "C" __global__ void __launch_bounds__(block_threads)
    distile_list_tiles(DeviceBits mask, TileGrids grids, uint32_t *counts, uint32_t patience) {
    const TileGrid &grid = grids.grids[blockIdx.y];
    if (blockIdx.x >= grid.blocks) {
        return;
    }
    const uint32_t warp = threadIdx.x / 32, first = first_of(grid, blockIdx.x, warp);
    const uint32_t bits = find_tiles(mask, grid, first);
    const uint32_t count = warp_sum(__popc(bits));
    __shared__ uint32_t warp_counts[warps], before_block;
    if (lane() == 0) {
        warp_counts[warp] = count;
    }
    __syncthreads();
    const uint32_t other = lane() < warps ? warp_counts[lane()] : 0;
    const uint32_t before_warp = warp_sum(lane() < warp ? other : 0);
    if (warp == 0) {
        const uint32_t found = warp_sum(other), before = look_back(mask, grid, found, patience);
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
