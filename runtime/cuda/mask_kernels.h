/** \file
 * What the host and the kernels of mask_kernels.cu agree on.
 */
#ifndef DISTILE_CUDA_MASK_KERNELS_H
#define DISTILE_CUDA_MASK_KERNELS_H

#include <cstdint>

namespace distile {

constexpr uint32_t mask_threads = 256;      ///< Of a block of any of the kernels.
constexpr uint32_t words_per_warp = 4;      ///< That distile_pack_bits packs.
constexpr uint32_t tiles_per_block = 1024;  ///< That distile_count_tiles and distile_list_tiles look at.
constexpr uint32_t most_counts = 65;        ///< Granularities of a mask: those of a kernel, and single pixels.
constexpr uint32_t most_grids = 16;         ///< Granularities that a launch counts.

/** A bitmask on the device, in words of 32. Does not own them. */
struct DeviceBits {
    const uint32_t *words;
    int32_t height, width, words_per_row;
};

/** The tiles of all images at a granularity. */
struct TileGrid {
    int32_t tile_h, tile_w;
    uint32_t rows, columns;  ///< Of an image.
    uint32_t tiles;          ///< Of all images.
    uint32_t slot;           ///< Where its count is.
    uint32_t *block_counts;  ///< The counts of each block's share.
};

struct TileGrids {
    TileGrid grids[most_grids];
};

}  // namespace distile

#endif
