/** \file
 * Lists of tiles in other orders than row by row.
 */
#ifndef DISTILE_TILE_WALK_H
#define DISTILE_TILE_WALK_H

#include "runtime/base/host_memory.h"
#include "runtime/mask/cell_order.h"
#include "runtime/mask/tiles.h"

namespace distile {

/** A walk through the tiles of an image. */
class TileWalk {
public:
    /** The most tiles of an image that are walked: more stay row by row. */
    static constexpr int64_t most_tiles = int64_t{1} << 20;

    /** `height` and `width` count tiles. */
    TileWalk(const HostMemory &memory, CellOrder order, int32_t height, int32_t width);

    bool is_of(CellOrder order, int32_t height, int32_t width) const {
        return order == order_ && height == height_ && width == width_;
    }
    /** Puts tiles of one image into the order, each of which is there once. Their origins are x | y << 16. */
    void sort(uint32_t *xy, int64_t count, Granularity tile);

private:
    CellOrder order_;
    int32_t height_, width_;
    HostVector<uint32_t> cells_;     ///< The cell of each step: column | row << 16.
    HostVector<uint32_t> steps_;     ///< The step of each cell, row by row.
    HostVector<uint64_t> is_there_;  ///< A bit for each step; 0 between calls.
};

}  // namespace distile

#endif
