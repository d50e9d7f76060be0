#include "time_table.h"
#include <algorithm>
#include <cstdlib>

namespace distile {

TimeTable::TimeTable(const std::vector<distile_time_point> &points, int32_t num_variants, int32_t threads)
    : variants_(num_variants) {
    for (int32_t variant = 0; variant < num_variants; variant++) {
        int32_t nearest = 0;
        for (const distile_time_point &point : points) {
            const int32_t distance = std::abs(point.threads - threads), least = std::abs(nearest - threads);
            if (point.variant == variant &&
                (nearest == 0 || distance < least || (distance == least && point.threads < nearest))) {
                nearest = point.threads;
            }
        }
        std::vector<Point> &kept = variants_[variant];
        for (const distile_time_point &point : points) {
            if (point.variant == variant && point.threads == nearest) {
                kept.push_back({point.tiles, point.microseconds});
            }
        }
        std::sort(kept.begin(), kept.end(), [](const Point &a, const Point &b) { return a.tiles < b.tiles; });
    }
}

bool TimeTable::knows(int32_t variant) const {
    return static_cast<size_t>(variant) < variants_.size() && !variants_[variant].empty();
}

double TimeTable::predict(int32_t variant, int64_t tiles) const {
    const std::vector<Point> &points = variants_[variant];
    const auto above = std::lower_bound(points.begin(), points.end(), tiles,
                                        [](const Point &point, int64_t wanted) { return point.tiles < wanted; });
    if (above == points.begin()) {
        return points.front().microseconds;
    }
    const Point &below = *(above - 1);
    if (above == points.end()) {
        return below.microseconds * static_cast<double>(tiles) / static_cast<double>(std::max<int64_t>(below.tiles, 1));
    }
    const double part = static_cast<double>(tiles - below.tiles) / static_cast<double>(above->tiles - below.tiles);
    return below.microseconds + part * (above->microseconds - below.microseconds);
}

}  // namespace distile
