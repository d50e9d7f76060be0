/** \file
 * Bitmasks: packing bytes into bits, and counting and listing the active tiles of any granularity. Pure functions on
 * caller-owned memory; none allocates or fails.
 */
#ifndef DISTILE_BITMASK_H
#define DISTILE_BITMASK_H

#include "runtime/cpu/simd/simd_level.h"
#include "runtime/mask/tiles.h"

namespace distile {

/** One bit per pixel, rows padded to whole 64-bit words with 0 bits (the layout of distile_mask_bits()). Extents range
 * from 1 to 65535. Does not own its words. */
struct Bitmask {
    const uint64_t *words;
    int32_t batch, height, width;

    int32_t words_per_row() const {
        return (width + 63) / 64;
    }
};

/** Packs bytes[n * stride_n + y * stride_h + x] (0: inactive, else active) into
 * batch * height * ceil(width / 64) words, and returns the number of active pixels. */
int64_t pack_bitmask(const uint8_t *bytes, int64_t stride_n, int64_t stride_h, int32_t batch, int32_t height,
                     int32_t width, uint64_t *words);

/** The number of active pixels. `scratch` has room for one row. */
int64_t count_pixels(const Bitmask &mask, uint64_t *scratch);

/** The scratch size of count_tiles() and list_tiles() in 64-bit words. */
int64_t tile_scratch_words(const Bitmask &mask);

/** Counts the active tiles at several granularities: counts[i] for granularities[i]. */
void count_tiles(const Bitmask &mask, const Granularity *granularities, int32_t num_granularities, uint64_t *scratch,
                 int64_t *counts);

/** Writes the active tiles at a granularity: first those inside `interior` (of every image), then the others, each part
 * ordered by image, row and column. `interior` may be empty or reach beyond the grid. xy holds the origin in pixels, x
 * | y << 16, and image the image's index. Both need room for the count plus tile_list_slack entries. Returns the number
 * of interior tiles. */
int64_t list_tiles(const Bitmask &mask, Granularity granularity, const TileRect &interior, uint64_t *scratch,
                   uint32_t *xy, uint32_t *image);

}  // namespace distile

#endif
