/** \file
 * Ranking a whole space by the bound, to keep the part of it that is worth measuring.
 */
#ifndef DISTILE_RANK_H
#define DISTILE_RANK_H

#include "autoscheduler/bound/bound.h"
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace distile {

/** Masks of about one density, for which schedules are ranked. */
struct Bucket {
    double density = 0; /**< Active pixels by all pixels. */
    /** Tiles with an active pixel, for a granularity. */
    std::function<int64_t(int tile_h, int tile_w)> tiles;
};

/** A bucket for a density alone. It assumes the masks of the benchmarks' family "blob": Gaussian random fields with a
 * correlation length of 1/8 of the image, cut at the quantile of the density. Density 1 gives every tile of the image.
 */
Bucket density_bucket(const Workload &workload, double density);

struct RankOptions {
    BoundForm form = BoundForm::Corrected;
    double keep = .001;       /**< Part of the space to keep, ... */
    int64_t per_bucket = 200; /**< ... but at least this number of points a bucket, ... */
    double at_most = .01;     /**< ... and at most this part. At least one point is kept. */
    int threads = 0;          /**< 0: one a core. */
    Theta held;               /**< Knobs that are held at one value. */
    std::function<void(const std::string &what, double part)> progress;
};

struct Candidate {
    Theta theta;
    std::vector<double> us; /**< The bound, by bucket. */
};

struct Ranking {
    int64_t legal_points = 0; /**< The legal points of the whole space. */
    std::vector<Bucket> buckets;
    std::vector<Candidate> kept; /**< Best first: by the mean ratio to each bucket's best bound. */
};

/** Ranks every legal point of the space of the workload's backend in every bucket, and keeps the union of the best: of
 * a bucket's share of the points one half goes to the best whatever their granularity, and the other half to the best
 * of each granularity, so that the bound alone rules out no granularity. Equal bounds are ranked by the sum of their
 * terms; of points that are equal in both, which the bound cannot tell apart, the first of the space stands for all.
 * Throws FileError where nothing is legal. */
Ranking rank(const Workload &workload, const std::vector<Bucket> &buckets, const RankOptions &options = {});

}  // namespace distile

#endif
