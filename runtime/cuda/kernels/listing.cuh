/** \file
 * Numbers the active tiles of all blocks of a launch in one pass, and lists them in order.
 *
 * Each warp has groups of 32 tiles, and lane i the bits of the active ones in group i.
 */
#ifndef DISTILE_CUDA_KERNELS_LISTING_CUH
#define DISTILE_CUDA_KERNELS_LISTING_CUH

#include "runtime/cuda/kernels/device.cuh"

namespace distile {

constexpr uint32_t warps = block_threads / 32;

/** The origin of a tile. */
struct Tile {
    int32_t x, y, image;
};

/** The first group of a warp. */
inline __device__ uint32_t first_group(uint32_t groups, uint32_t block, uint32_t warp) {
    return (block * warps + warp) * groups;
}

/** The number of this launch, from 1 on. The blocks of a launch together add 2^32 to the first state, and each adds its
 * share after its last look at the others, so all of them read the same upper half. No launch has to clear states. */
inline __device__ uint32_t launch_number(const TileGrid &grid) {
    const volatile unsigned long long *const states = grid.states;
    return static_cast<uint32_t>(states[0] >> 32) + 1;
}

/** The lower half of a block's state is its count of tiles, or with this bit the count of all blocks up to it; the
 * upper half is the launch that wrote it. A state is one word, so no reader sees half of it. */
constexpr uint32_t of_all = 1u << 31;

inline __device__ unsigned long long make_state(uint32_t launch, uint32_t count) {
    return static_cast<unsigned long long>(launch) << 32 | count;
}

/** The number of tiles of all blocks before this one. Each thread looks at one block, from the nearest on. CUDA
 * promises no order in which blocks start, so no block may wait for another: after polling a silent block `patience`
 * times, a warp counts that block's tiles itself. `find(block, warp)` returns the bits of any warp. */
template<typename Find>
__device__ uint32_t look_back(const TileGrid &grid, uint32_t launch, uint32_t patience, const Find &find) {
    __shared__ uint32_t sums[warps], ends[warps];
    const volatile unsigned long long *const states = grid.states + 1;
    const uint32_t warp = threadIdx.x / 32;
    uint32_t before = 0;
    bool ended = false;
    for (int64_t end = blockIdx.x; end > 0 && !ended; end -= block_threads) {
        const int64_t other = end - 1 - threadIdx.x;
        // No tiles precede the first block.
        unsigned long long state = make_state(launch, of_all);
        uint32_t knowing = 0, needed = 0, silent = 0, looks = 0;
        do {
            if (other >= 0) {
                state = states[other];
            }
            const bool speaks = state >> 32 == launch;
            knowing = __ballot_sync(all_lanes, speaks && (state & of_all) != 0);
            // The nearest block that knows its whole prefix is the last one to add.
            needed = knowing ^ (knowing - 1);
            silent = __ballot_sync(all_lanes, !speaks) & needed;
        } while (silent != 0 && ++looks < patience);
        uint32_t count = static_cast<uint32_t>(state) & ~of_all;
#pragma unroll 1
        for (; silent != 0; silent &= silent - 1) {
            const uint32_t which = __ffs(static_cast<int>(silent)) - 1;
            const auto block = static_cast<uint32_t>(end - 1 - warp * 32 - which);
            uint32_t found = 0;
#pragma unroll 1
            for (uint32_t i = 0; i < warps; i++) {
                found += __popc(find(block, i));
            }
            found = warp_sum(found);
            count = lane() == which ? found : count;
        }
        const uint32_t sum = warp_sum((needed >> lane() & 1) != 0 ? count : 0);
        if (lane() == 0) {
            sums[warp] = sum;
            ends[warp] = knowing;
        }
        __syncthreads();
        for (uint32_t i = 0; i < warps && !ended; i++) {
            before += sums[i];
            ended = ends[i] != 0;
        }
        __syncthreads();
    }
    return before;
}

/** Returns the entry at which a warp's tiles begin in the list, and stores the count of all. Called by all threads of
 * the grid's blocks, with the bits that find() returned for their warp. */
template<typename Find> __device__ uint32_t number_tiles(const TileGrid &grid, uint32_t blocks, uint32_t launch,
                                                         uint32_t bits, const Find &find, uint32_t *counts,
                                                         uint32_t patience) {
    __shared__ uint32_t warp_counts[warps];
    const uint32_t warp = threadIdx.x / 32, block = blockIdx.x;
    const uint32_t count = warp_sum(__popc(bits));
    if (lane() == 0) {
        warp_counts[warp] = count;
    }
    __syncthreads();
    uint32_t of_block = 0, before_warp = 0;
#pragma unroll
    for (uint32_t i = 0; i < warps; i++) {
        before_warp += i < warp ? warp_counts[i] : 0;
        of_block += warp_counts[i];
    }
    volatile unsigned long long *const state = grid.states + 1 + block;
    if (threadIdx.x == 0) {
        *state = make_state(launch, of_block | (block == 0 ? of_all : 0));
    }
    const uint32_t before = look_back(grid, launch, patience, find);
    if (threadIdx.x == 0) {
        const bool is_last = block == blocks - 1;
        if (block > 0) {
            *state = make_state(launch, (before + of_block) | of_all);
        }
        if (is_last) {
            counts[grid.slot] = before + of_block;
            if (grid.lengths) {
                grid.lengths[grid.batch] = static_cast<int32_t>(before + of_block);
            }
        }
        atomicAdd(grid.states, is_last ? (1ull << 32) - (blocks - 1) : 1ull);
    }
    return before + before_warp;
}

/** Writes a warp's tiles into the list, from entry `at` on, and the entries at which images begin. `tile_of(group)`
 * returns this lane's tile. */
template<typename TileOf>
__device__ void write_tiles(const TileGrid &grid, uint32_t groups, uint32_t bits, uint32_t at, const TileOf &tile_of) {
#pragma unroll 4
    for (uint32_t group = 0; group < groups; group++) {
        const uint32_t found = __shfl_sync(all_lanes, bits, group);
        const uint32_t entry = at + __popc(found & ((1u << lane()) - 1));
        const Tile tile = tile_of(group);
        if (grid.lengths && tile.x == 0 && tile.y == 0 && static_cast<uint32_t>(tile.image) < grid.batch) {
            grid.lengths[tile.image] = static_cast<int32_t>(entry);
        }
        if ((found >> lane() & 1) != 0) {
            grid.xy[entry] = static_cast<uint32_t>(tile.x) | static_cast<uint32_t>(tile.y) << 16;
            grid.images[entry] = static_cast<uint32_t>(tile.image);
        }
        at += __popc(found);
    }
}

}  // namespace distile

#endif
