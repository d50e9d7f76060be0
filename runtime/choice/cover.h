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
#include <memory>
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

/** Plans covers of masks that come one after the other, as in video and in steps of diffusion. It keeps what it decided
 * about the largest nodes, and decides only those anew whose pixels changed. Its covers are those of plan_cover(),
 * whatever masks came before. */
class CoverPlanner {
public:
    /** The points of the variants must outlive it. */
    CoverPlanner(std::vector<TimedVariant> variants, CellOrder order);
    CoverPlanner(CoverPlanner &&) noexcept;
    CoverPlanner &operator=(CoverPlanner &&) noexcept;
    ~CoverPlanner();

    /** The cover of a mask, valid until the next call. */
    const Cover &plan(const Bitmask &mask);
    /** How many of the largest nodes had other pixels in the last call than in the one before. */
    int64_t changed_nodes() const;

private:
    class Nodes;

    std::unique_ptr<const std::vector<TimedVariant>> variants_;  // The nodes point to it.
    std::unique_ptr<Nodes> nodes_;
    Cover cover_;
};

}  // namespace distile

#endif
