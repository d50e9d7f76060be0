/** \file
 * Shared by the host and all kernels: divisors, bitmasks, and tile grids.
 */
#ifndef DISTILE_CUDA_KERNELS_COMMON_H
#define DISTILE_CUDA_KERNELS_COMMON_H

#include "runtime/gpu/divisor.h"
#include "runtime/mask/mask_bytes.h"

namespace distile {

constexpr uint32_t block_threads = 256;  ///< The default block size.

/** A bitmask on the device, in 32-bit words. Does not own them. */
struct DeviceBits {
    const uint32_t *words;
    int32_t height, width, words_per_row;
};

constexpr uint32_t most_grids = 16;   ///< The most granularities per launch.
constexpr uint32_t most_groups = 32;  ///< The most groups of 32 tiles per warp, and so the most words.

/** The tiles of all images at a granularity, and the destinations of their count and list. */
struct TileGrid {
    int32_t tile_h, tile_w;
    Divisor rows, columns;  ///< Per image.
    uint32_t tiles;         ///< In all images.
    uint32_t groups;        ///< Groups of 32 tiles per warp of distile_list_tiles, up to most_groups.
    uint32_t slot;          ///< The slot of the count.
    uint32_t blocks;        ///< Blocks of distile_list_tiles.
    /** The number of the launch, then what each of its blocks knows about the tiles before its own. Zeros at first;
     * from then on only launches write them. */
    unsigned long long *states;
    uint32_t *xy, *images;  ///< Null: only count.
    /** If single pixels are listed: the number of those before each image, and of all. Else null. */
    int32_t *lengths;
    uint32_t batch;
};

/** The grids of a launch. */
struct TileGrids {
    TileGrid grids[most_grids];
};

}  // namespace distile

#endif
