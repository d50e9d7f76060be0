/** \file
 * What the kernels get that make covers of mixed granularity on a GPU.
 */
#ifndef DISTILE_BENCH_COVER_KERNELS_H
#define DISTILE_BENCH_COVER_KERNELS_H

#include <cstdint>

namespace distile::bench {

/** Tiles of 1, 2, 4, 8 and 16 pixels in each direction, the levels of a quadtree. */
constexpr int32_t cover_levels = 5, largest_cover_tile = 16;
/** Threads of a block: four for each of the largest nodes. */
constexpr uint32_t cover_threads = 256;

struct CoverCall {
    const uint32_t *words;  ///< [image][row][words_per_row], 0 beyond the width.
    int32_t words_per_row, batch, height, width;
    uint32_t node_rows, node_columns;  ///< The largest nodes of an image.
    float tile_us[cover_levels];       ///< What a tile takes; infinite: there are none of this size.
    // Made by the first kernel for the second one.
    unsigned long long *pixels;  ///< For each thread, the tiles of one pixel.
    uint32_t *nodes;             ///< For each thread, its larger tiles as bits.
    unsigned long long *counts;  ///< The tiles of a block, packed.
    // The result.
    uint32_t *xy[cover_levels], *image[cover_levels];  ///< x | y << 16, and the image.
    uint32_t *totals;                                  ///< By level.
};

}  // namespace distile::bench

#endif
