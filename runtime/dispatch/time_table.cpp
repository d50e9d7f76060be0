#include "runtime/dispatch/time_table.h"
#include <algorithm>

namespace distile {

namespace {

/** A variant's points for a number of threads, ordered by tiles. */
std::vector<TimePoint> points_for(const std::vector<distile_time_point> &points, int32_t variant, int32_t threads) {
    std::vector<TimePoint> kept;
    for (const distile_time_point &point : points) {
        if (point.variant == variant && point.threads == threads) {
            kept.push_back({point.tiles, point.microseconds});
        }
    }
    std::sort(kept.begin(), kept.end(), [](const TimePoint &a, const TimePoint &b) { return a.tiles < b.tiles; });
    return kept;
}

double predict(const std::vector<TimePoint> &points, int64_t tiles) {
    return predict_time(points.data(), static_cast<int32_t>(points.size()), tiles);
}

/** Mixes two curves, both linear between the tiles of either: `part` of the first. */
std::vector<TimePoint> mix(const std::vector<TimePoint> &first, const std::vector<TimePoint> &second, double part) {
    std::vector<int64_t> tiles;
    for (const std::vector<TimePoint> *points : {&first, &second}) {
        for (const TimePoint &point : *points) {
            tiles.push_back(point.tiles);
        }
    }
    std::sort(tiles.begin(), tiles.end());
    tiles.erase(std::unique(tiles.begin(), tiles.end()), tiles.end());
    std::vector<TimePoint> mixed;
    for (const int64_t count : tiles) {
        mixed.push_back({count, part * predict(first, count) + (1 - part) * predict(second, count)});
    }
    return mixed;
}

}  // namespace

TimeTable::TimeTable(const std::vector<distile_time_point> &points, int32_t num_variants, int32_t threads)
    : variants_(num_variants) {
    for (int32_t variant = 0; variant < num_variants; variant++) {
        // The nearest numbers of threads on either side; 0: there is none.
        int32_t fewer = 0, more = 0;
        for (const distile_time_point &point : points) {
            if (point.variant == variant) {
                fewer = point.threads <= threads ? std::max(fewer, point.threads) : fewer;
                more = point.threads >= threads && (more == 0 || point.threads < more) ? point.threads : more;
            }
        }
        if (fewer == 0 || more == 0 || fewer == more) {
            variants_[variant] = points_for(points, variant, std::max(fewer, more));
            continue;
        }
        // A part of the work takes its time whatever the threads, the rest is divided among them.
        const double part = (1.0 / threads - 1.0 / more) / (1.0 / fewer - 1.0 / more);
        variants_[variant] = mix(points_for(points, variant, fewer), points_for(points, variant, more), part);
    }
}

bool TimeTable::knows(int32_t variant) const {
    return static_cast<size_t>(variant) < variants_.size() && !variants_[variant].empty();
}

double TimeTable::predict(int32_t variant, int64_t tiles) const {
    return distile::predict(variants_[variant], tiles);
}

}  // namespace distile
