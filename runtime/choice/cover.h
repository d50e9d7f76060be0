/** \file
 * Covers of mixed granularity: a mask as tiles of several sizes, each where it is fastest. Pure functions on host
 * memory.
 *
 * The tiles are nodes of a quadtree over the pixels, so none overlap and each active pixel has one owner. A node is
 * split while one tile of its size takes longer than what its parts take, from the smallest size upwards.
 */
#ifndef DISTILE_COVER_H
#define DISTILE_COVER_H

#include "runtime/choice/choose_variant.h"
#include "runtime/cpu/bitmask.h"
#include "runtime/mask/cell_order.h"
#include <vector>

namespace distile {

/** The tiles of one size in a cover: the origins x | y << 16 and the images, as kernels take them. */
struct CoverTiles {
    int32_t variant;
    std::vector<uint32_t> xy, image;
};

struct Cover {
    /** Largest first; sizes without tiles are left out. One entry with a dense variant and no tiles: the whole image.
     */
    std::vector<CoverTiles> sizes;
    double us = 0;  ///< By the variants' times: the sum over the sizes.
};

/** The sizes that a cover can combine, smallest first, and the variants of each: those with times and without dense
 * whose height and width are those of the smallest one times a power of two. */
std::vector<std::vector<int32_t>> cover_sizes(const std::vector<TimedVariant> &variants);

/** The fastest cover that a few passes over the quadtree find: with all sizes, and then without those that are not
 * worth what their first tile takes. It is never slower than the fastest variant alone, of those that it can combine
 * and dense ones. Tiles of a size are in the given order, image by image. */
Cover plan_cover(const Bitmask &mask, const std::vector<TimedVariant> &variants, CellOrder order);

}  // namespace distile

#endif
