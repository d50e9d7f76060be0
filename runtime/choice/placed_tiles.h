/** \file
 * Tiles that lie anywhere instead of on a grid, because fewer of them cover a mask. Pure functions on host memory.
 *
 * Such tiles may overlap, so a tile carries the bits of the pixels that it owns. Each active pixel has one owner, and
 * no tile is without a pixel.
 */
#ifndef DISTILE_PLACED_TILES_H
#define DISTILE_PLACED_TILES_H

#include "runtime/cpu/bitmask.h"
#include <vector>

namespace distile {

/** The most pixels of a tile that is placed, one for each bit. */
constexpr int32_t most_placed_pixels = 64;

struct PlacedTile {
    int32_t image, y, x;  ///< The origin in pixels; a tile may reach beyond the right and the lower edge.
    uint64_t owned;       ///< Bit i * tile.w + j: it owns the active pixel (y + i, x + j).
};

/** A grid for each connected component, from the first row and column of its pixels (DynaSpa, section 3.1). Pixels that
 * touch, if only at a corner, are connected. Tiles of different components may overlap. Component by component, each
 * row by row. Requires tiles of at most most_placed_pixels. */
std::vector<PlacedTile> place_by_component(const Bitmask &mask, const Granularity &tile);

/** Rows of tiles, each from the first row with a pixel that has no owner yet, and along it each tile from the first
 * column with such a pixel. No tiles overlap, so a tile owns what is active in it, and code that reads the mask's bits
 * computes these tiles as it is. No fewer tiles of height 1 cover a mask. Image by image, row by row. Requires
 * tiles of at most most_placed_pixels. */
std::vector<PlacedTile> place_by_row(const Bitmask &mask, const Granularity &tile);

}  // namespace distile

#endif
