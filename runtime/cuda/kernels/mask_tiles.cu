// Counts and lists the active tiles of a mask.
#include "runtime/cuda/kernels/listing.cuh"

using namespace distile;

namespace {

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

/** The active tiles of a warp's groups of 32, from group `first` on; lane i gets the bits of group i. */
__device__ uint32_t find_tiles(const DeviceBits &mask, const TileGrid &grid, uint32_t first) {
    uint32_t bits = 0;
#pragma unroll 4
    for (uint32_t group = 0; group < grid.groups; group++) {
        const uint32_t tile = (first + group) * 32 + lane();
        const uint32_t found = __ballot_sync(all_lanes, tile < grid.tiles && is_active(mask, grid, tile));
        bits = lane() == group ? found : bits;
    }
    return bits;
}

}  // namespace

/** Counts the active tiles of grids[blockIdx.y] and lists them in order. */
extern "C" __global__ void __launch_bounds__(block_threads)
    distile_list_tiles(DeviceBits mask, TileGrids grids, uint32_t *counts, uint32_t patience) {
    wait_for_earlier_kernels();
    const TileGrid &grid = grids.grids[blockIdx.y];
    if (blockIdx.x >= grid.blocks) {
        return;
    }
    const uint32_t launch = launch_number(grid);
    const auto find = [&](uint32_t block, uint32_t warp) {
        return find_tiles(mask, grid, first_group(grid.groups, block, warp));
    };
    const uint32_t warp = threadIdx.x / 32, first = first_group(grid.groups, blockIdx.x, warp);
    const uint32_t bits = find(blockIdx.x, warp);
    const uint32_t at = number_tiles(grid, grid.blocks, launch, bits, find, counts, patience);
    if (grid.xy) {
        write_tiles(grid, grid.groups, bits, at,
                    [&](uint32_t group) { return tile_at(grid, (first + group) * 32 + lane()); });
    }
}
