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
    return static_cast<uint32_t>(uint64_t{number} * by.multiplier >> by.shift);
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
    const Tile tile = tile_at(grid, index);
    const int32_t end_x = min(tile.x + grid.tile_w, mask.width), end_y = min(tile.y + grid.tile_h, mask.height);
    const int32_t first = tile.x / 32, last = (end_x - 1) / 32;
    const uint32_t first_bits = ~0u << (tile.x % 32), last_bits = ~0u >> (31 - (end_x - 1) % 32);
    const uint32_t *words = mask.words + (static_cast<int64_t>(tile.image) * mask.height + tile.y) * mask.words_per_row;
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
__device__ uint32_t find_tiles(const DeviceBits &mask, const TileGrid &grid, uint32_t first, uint32_t groups) {
    uint32_t bits = 0;
#pragma unroll 4
    for (uint32_t group = 0; group < groups; group++) {
        const uint32_t tile = first + group * 32 + lane();
        const uint32_t found = __ballot_sync(all_lanes, tile < grid.tiles && is_active(mask, grid, tile));
        bits = lane() == group ? found : bits;
    }
    return bits;
}

/** Lists what find_tiles() found from entry `at` on. */
__device__ void write_tiles(const TileGrid &grid, uint32_t first, uint32_t groups, uint32_t bits, uint32_t at) {
#pragma unroll 4
    for (uint32_t group = 0; group < groups; group++) {
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

/** What the warps of a block found: of those before this one, and of all. */
struct Counts {
    uint32_t before, all;
};

template<uint32_t warps> __device__ Counts count_block(uint32_t bits) {
    __shared__ uint32_t found[warps];
    const uint32_t count = warp_sum(__popc(bits)), warp = threadIdx.x / 32;
    if (lane() == 0) {
        found[warp] = count;
    }
    __syncthreads();
    const uint32_t mine = lane() < warps ? found[lane()] : 0;
    return {warp_sum(lane() < warp ? mine : 0), warp_sum(mine)};
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

/** A warp packs words_per_warp words. */
extern "C" __global__ void __launch_bounds__(mask_threads)
    distile_pack_bits(MaskBytes bytes, DeviceBits mask, uint32_t *words) {
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
    constexpr uint32_t warps = mask_threads / 32;
    const TileGrid &grid = grids.grids[blockIdx.y];
    const uint32_t tiles_per_block = mask_threads * grid.groups;
    const uint32_t blocks = (grid.tiles + tiles_per_block - 1) / tiles_per_block;
    if (blockIdx.x >= blocks) {
        return;
    }
    const uint32_t first = blockIdx.x * tiles_per_block + threadIdx.x / 32 * 32 * grid.groups;
    const uint32_t bits = find_tiles(mask, grid, first, grid.groups);
    const Counts found = count_block<warps>(bits);
    __shared__ uint32_t before;
    __shared__ bool is_last;
    if (threadIdx.x < 32) {
        const uint32_t sum = look_back(grid.states + 1, found.all);
        if (threadIdx.x == 0) {
            before = sum;
            if (blockIdx.x == blocks - 1) {
                counts[grid.slot] = sum + found.all;
            }
            // Nobody waits any more when all blocks have come here.
            __threadfence();
            is_last = atomicAdd(grid.states, 1) == blocks - 1;
        }
    }
    __syncthreads();
    if (grid.xy) {
        write_tiles(grid, first, grid.groups, bits, before + found.before);
    }
    if (is_last) {
        for (uint32_t i = threadIdx.x; i <= blocks; i += mask_threads) {
            grid.states[i] = 0;
        }
    }
}

/** Both for a mask of up to small_mask_words: every block packs all of it for itself, and lists a grid. */
extern "C" __global__ void __launch_bounds__(small_mask_threads)
    distile_set_small(MaskBytes bytes, DeviceBits mask, TileGrids grids, uint32_t *words, uint32_t *counts) {
    constexpr uint32_t warps = small_mask_threads / 32;
    __shared__ uint32_t packed[small_mask_words];
    const uint32_t warp = threadIdx.x / 32;
#pragma unroll 4
    for (uint32_t first = 0; first < bytes.num_words; first += warps) {
        const uint32_t word = __ballot_sync(all_lanes, is_set(bytes, mask.width, first + warp));
        if (lane() == 0 && first + warp < bytes.num_words) {
            packed[first + warp] = word;
            if (blockIdx.x == 0) {
                words[first + warp] = word;
            }
        }
    }
    __syncthreads();
    mask.words = packed;
    const TileGrid &grid = grids.grids[blockIdx.x];
    const uint32_t groups = (grid.tiles + small_mask_threads - 1) / small_mask_threads, first = warp * 32 * groups;
    const uint32_t bits = find_tiles(mask, grid, first, groups);
    const Counts found = count_block<warps>(bits);
    if (threadIdx.x == 0) {
        counts[grid.slot] = found.all;
    }
    if (grid.xy) {
        write_tiles(grid, first, groups, bits, found.before);
    }
}

namespace {

/** Updates pixels, a warp each. `Vector` is what a thread stores at once. Without words all pixels are active. */
template<typename Vector> __device__ void update_pixels(const DeviceBits &mask, const PixelUpdate &update) {
    const uint32_t warps = gridDim.x * (mask_threads / 32);
    for (uint32_t pixel = blockIdx.x * (mask_threads / 32) + threadIdx.x / 32; pixel < update.num_pixels;
         pixel += warps) {
        const uint32_t row = divide(pixel, update.width), x = pixel - row * update.width.value;
        const bool active = !mask.words ||
                            (mask.words[static_cast<int64_t>(row) * mask.words_per_row + x / 32] >> (x % 32) & 1) != 0;
        if (active ? !update.from : update.zero == 0) {
            continue;
        }
        const uint32_t image = divide(row, update.height), y = row - image * update.height.value;
        Vector *to =
            static_cast<Vector *>(update.to) + image * update.stride_n + y * update.stride_h + x * update.stride_w;
        const Vector *from = static_cast<const Vector *>(update.from) + static_cast<int64_t>(pixel) * update.channels;
        for (int32_t i = static_cast<int32_t>(lane()); i < update.channels; i += 32) {
            to[i] = active ? from[i] : Vector{};
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
