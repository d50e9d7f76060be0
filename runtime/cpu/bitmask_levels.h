/** \file
 * The SIMD levels behind bitmask.h. Only for bitmask.cpp and its tests, which run every level that the CPU has.
 */
#ifndef DISTILE_BITMASK_LEVELS_H
#define DISTILE_BITMASK_LEVELS_H

#include "bitmask.h"
#include "levels.h"

namespace distile {

/** Some rows of the tile grid of an image. A bit that is set both in a row and in `columns` is a tile, and its
 * position is the tile's origin in pixels. */
struct TileRows {
    const uint64_t *rows;     ///< num_rows * num_words
    const uint64_t *columns;  ///< num_words
    int32_t num_rows, num_words;
};

/** The inner loops. All levels give the same results. */
struct BitmaskLevel {
    const char *name;

    /** Packs `width` bytes into ceil(width / 64) words and returns the number of nonzero bytes. */
    int64_t (*pack_row)(const uint8_t *bytes, int32_t width, uint64_t *words);

    /** Counts the tiles. */
    int64_t (*count)(const TileRows &tiles);

    /** Writes x | y << 16 for every tile, where y starts at `y` and grows by `tile_h` a row, and returns the end
     * of the list. May overwrite tile_list_slack entries beyond it. */
    uint32_t *(*list)(const TileRows &tiles, int32_t y, int32_t tile_h, uint32_t *xy);

    /** Writes `value` to all of [begin, end), and may overwrite tile_list_slack entries beyond the end. */
    void (*fill)(uint32_t *begin, const uint32_t *end, uint32_t value);
};

Levels<BitmaskLevel> supported_bitmask_levels();

// The functions of bitmask.h at a given level.
int64_t pack_bitmask(const BitmaskLevel &level, const uint8_t *bytes, int64_t stride_n, int64_t stride_h, int32_t batch,
                     int32_t height, int32_t width, uint64_t *words);
void count_tiles(const BitmaskLevel &level, const Bitmask &mask, const Granularity *granularities,
                 int32_t num_granularities, uint64_t *scratch, int64_t *counts);
int64_t list_tiles(const BitmaskLevel &level, const Bitmask &mask, Granularity granularity, const TileRect &interior,
                   uint64_t *scratch, uint32_t *xy, uint32_t *image);

}  // namespace distile

#endif
