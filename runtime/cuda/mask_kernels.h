/** \file
 * What the host and the kernels of mask_kernels.cu agree on.
 */
#ifndef DISTILE_CUDA_MASK_KERNELS_H
#define DISTILE_CUDA_MASK_KERNELS_H

#include <cstdint>

namespace distile {

constexpr uint32_t mask_threads = 256;         ///< Of a block of any of the kernels but distile_set_small.
constexpr uint32_t small_mask_threads = 1024;  ///< Of a block of distile_set_small.
constexpr uint32_t small_mask_words = 512;     ///< The largest mask of distile_set_small.
constexpr uint32_t words_per_warp = 4;         ///< That distile_pack_bits packs.
constexpr uint32_t most_groups = 32;           ///< Of 32 tiles, that a warp looks at.
constexpr uint32_t most_counts = 65;           ///< Granularities of a mask: those of a kernel, and single pixels.
constexpr uint32_t most_grids = 16;            ///< Granularities of a launch.

/** A number to divide numbers below 2^31 by. */
struct Divisor {
    uint32_t value, multiplier, shift;
};

/** n / value is n * multiplier >> shift: what the multiplier is rounded up by adds less than 1 / value. */
constexpr Divisor make_divisor(uint32_t value) {
    uint32_t bits = 0;
    while (uint64_t{1} << bits < value) {
        bits++;
    }
    const uint64_t power = uint64_t{1} << (31 + bits);
    return {value, static_cast<uint32_t>((power + value - 1) / value), 31 + bits};
}

/** A bitmask on the device, in words of 32. Does not own them. */
struct DeviceBits {
    const uint32_t *words;
    int32_t height, width, words_per_row;
};

/** The bytes that a mask is set from. */
struct MaskBytes {
    const uint8_t *bytes;
    int64_t stride_n, stride_h;
    Divisor words_per_row, height;
    uint32_t num_words;
};

/** The tiles of all images at a granularity, and where their number and their list go. */
struct TileGrid {
    int32_t tile_h, tile_w;
    Divisor rows, columns;  ///< Of an image.
    uint32_t tiles;         ///< Of all images.
    uint32_t groups;        ///< Of 32 tiles, that a warp of distile_list_tiles looks at: up to most_groups.
    uint32_t slot;          ///< Where the count is.
    /** How many blocks are done, and then what each block knows of the tiles before it. All 0 between launches. */
    unsigned long long *states;
    uint32_t *xy, *images;  ///< Null: the tiles are only counted.
};

struct TileGrids {
    TileGrid grids[most_grids];
};

/** Pixels to write, in vectors: strides and channels are counted in them. */
struct PixelUpdate {
    const void *from;  ///< A contiguous tensor that active pixels are copied from; null: they stay.
    void *to;
    int64_t stride_n, stride_h, stride_w;
    Divisor width, height;
    uint32_t num_pixels;
    int32_t channels;
    int32_t zero;  ///< 1: inactive pixels become 0; 0: they stay.
};

}  // namespace distile

#endif
