/** \file
 * The masks that a search optimises for.
 */
#ifndef DISTILE_MASK_SET_H
#define DISTILE_MASK_SET_H

#include "autoscheduler/bound/rank.h"
#include "masks/mask_families.h"
#include "plans/operator.h"
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace distile {

/** Masks over the output of one operator: their work, and their tiles at any granularity. */
class MaskSet {
public:
    /** Masks of one size with at least one active pixel each, at least one of them. */
    explicit MaskSet(std::vector<ByteMask> masks);

    size_t size() const {
        return masks_.size();
    }
    int32_t batch() const {
        return masks_.front().batch;
    }
    int32_t height() const {
        return masks_.front().height;
    }
    int32_t width() const {
        return masks_.front().width;
    }
    /** The part of the dense operator's multiply-adds that a mask needs; for a convolution, its density. */
    double work(size_t mask) const {
        return work_[mask];
    }
    /** By mask, the active tiles of a height and width, counted by the runtime's bitmask. Counts are kept;
     * threads must not call it at the same time. */
    const std::vector<int64_t> &tiles(std::pair<int, int> granularity) const;
    /** Tiles of the whole image at a granularity. */
    int64_t all_tiles(std::pair<int, int> granularity) const;
    /** Masks to rank schedules for. Those with work between the same bounds (.02, .075, .15, .25, .4, .6, .8) share a
     * bucket, with the mean of their tile counts. */
    std::vector<Bucket> buckets() const;
    /** The masks of some indices. */
    MaskSet subset(const std::vector<size_t> &indices) const;

private:
    std::vector<ByteMask> masks_;
    std::vector<double> work_;
    mutable std::map<std::pair<int, int>, std::vector<int64_t>> tiles_;
};

/** Masks for an operator of its typical size. Each of `sources` is a .npy file (bool or uint8, [n, y, x] or [y, x]), a
 * .png file (active where it is not black), a family as "blob:DENSITY:SEED", "random:DENSITY:SEED" or "checkerboard",
 * or a set of the suite, "suite:train" or "suite:held-out". In operators of batch B, every B masks of a file make one.
 * Masks without an active pixel are left out, and `left_out` says how many. Throws FileError. */
MaskSet read_mask_set(const std::vector<std::string> &sources, const Operator &op, int *left_out = nullptr);

/** Numbers of tiles at which to measure a schedule: `count` of them at most, log-spaced over what the masks give at its
 * granularity. */
std::vector<int64_t> tile_counts(const MaskSet &masks, std::pair<int, int> granularity, int count);

}  // namespace distile

#endif
