/** \file
 * What the host and the kernels of mask_kernels.cu agree on.
 */
#ifndef DISTILE_CUDA_MASK_KERNELS_H
#define DISTILE_CUDA_MASK_KERNELS_H

#include <cstdint>

namespace distile {

constexpr uint32_t mask_threads = 256;  ///< Of a block, unless a kernel says other.
constexpr uint32_t words_per_warp = 4;  ///< That distile_pack_bits packs.
constexpr uint32_t most_groups = 32;    ///< Of 32 tiles, that a warp looks at.
constexpr uint32_t most_counts = 65;    ///< Granularities of a mask: those of a kernel, and single pixels.
constexpr uint32_t most_grids = 16;     ///< Granularities of a launch.

/** A number to divide numbers below 2^31 by. */
struct Divisor {
    uint32_t value, multiplier, shift;
};

/** n / value is the upper word of n * multiplier, shifted, unless value is 1: what the multiplier is rounded up by adds
 * less than 1 / value. */
constexpr Divisor make_divisor(uint32_t value) {
    uint32_t bits = 1;
    while (uint64_t{1} << bits < value) {
        bits++;
    }
    const uint64_t power = uint64_t{1} << (31 + bits);
    return {value, value == 1 ? 0 : static_cast<uint32_t>((power + value - 1) / value), bits - 1};
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
    uint32_t blocks;        ///< Of distile_list_tiles.
    /** What each block knows of the tiles before its own: 0 before distile_list_tiles. */
    unsigned long long *states;
    uint32_t *xy, *images;  ///< Null: the tiles are only counted.
};

struct TileGrids {
    TileGrid grids[most_grids];
};

constexpr uint32_t most_steps = 16;  ///< That copy a bit to 65535 places.

/** How the bits of a row move: they are put `spread` places apart, copied up by each of the distances in turn, moved up
 * by `shift`, which may be negative, and copied down; every `take`th then is a bit of the result. */
struct BitRow {
    int32_t from_bits, to_bits;  ///< That count.
    int32_t words;               ///< Of a row on its way.
    int32_t spread, shift, take;
    int32_t num_up, num_down;
    int32_t up[most_steps], down[most_steps];
};

/** The rows that row y of the result unites: for each tap, with t = y * scale + start + tap * dilation, the rows
 * between (t - before) / divisor and (t + behind) / divisor. */
struct BitColumn {
    int32_t taps, dilation, scale, start, before, behind;
    Divisor divisor;
};

/** A mask that is made from another through a window. A team of threads, a power of two, makes a row. */
struct BitTransfer {
    DeviceBits from;
    BitColumn column;
    BitRow row;
    Divisor height;  ///< Of the result.
    uint32_t num_rows, team;
    int32_t words_per_row;  ///< Of the result.
};

/** What becomes of the bits of two masks, or of the first alone. */
enum class Combination : int32_t { Unite, Intersect, Subtract, Invert };

struct BitCombination {
    const uint32_t *a, *b;
    Combination how;
    Divisor words_per_row;
    uint32_t num_words, last_bits;  ///< Of a row's last word, those that are pixels.
};

/** Elements of a tensor. */
struct Elements {
    const float *data;
    int64_t stride_n, stride_h, stride_w;
};

constexpr int32_t most_channels = 4;     ///< Of packed pixels that have a kernel of their own.
constexpr uint32_t pixel_threads = 128;  ///< Of its blocks: a small image has few, and all multiprocessors take part.

/** Two tensors that are compared. A team of threads makes a word: 8 of packed pixels. */
struct Comparison {
    Elements a, b;
    Divisor words_per_row, height, channels;
    uint32_t num_words, team;
    int32_t width;
    float threshold;
};

constexpr uint32_t pixels_per_warp = 8;  ///< That an update visits at once. They share a word of the mask.

/** Pixels to write, in vectors: strides and channels are counted in them. */
struct PixelUpdate {
    const void *from;  ///< A contiguous tensor that active pixels are copied from; null: they stay.
    void *to;
    int64_t stride_n, stride_h, stride_w;
    Divisor runs, height;  ///< Of pixels_per_warp pixels, in a row; and rows of an image.
    uint32_t num_runs;     ///< Of all images.
    int32_t width, channels;
    int32_t zero;  ///< 1: inactive pixels become 0; 0: they stay.
};

/** Pixels of a buffer that will be written: the active ones, or without words all. */
struct WrittenPixels {
    DeviceBits bits;
    PixelUpdate update;
    int32_t lanes;  ///< Of a vector.
};

/** What was last written to a buffer, on the device: a graph that is replayed finds what the replay before it wrote.
 * One slot is read while the other is written. All 0: nothing. */
struct BufferRecord {
    WrittenPixels slots[2];
    uint32_t current, blocks_done;
};

/** A buffer that is handed out. */
struct HandOut {
    BufferRecord *record;
    int32_t clear;  ///< 1: what was last written becomes 0.
    int32_t keep;   ///< 1: what will be written is recorded, its bits copied to one of `kept`.
    WrittenPixels written;
    uint32_t num_words;
    uint32_t *kept[2];
};

}  // namespace distile

#endif
