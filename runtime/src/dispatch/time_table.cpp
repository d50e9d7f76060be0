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
        std::vector<TimePoint> &kept = variants_[variant];
        for (const distile_time_point &point : points) {
            if (point.variant == variant && point.threads == nearest) {
                kept.push_back({point.tiles, point.microseconds});
            }
        }
        std::sort(kept.begin(), kept.end(), [](const TimePoint &a, const TimePoint &b) { return a.tiles < b.tiles; });
    }
}

bool TimeTable::knows(int32_t variant) const {
    return static_cast<size_t>(variant) < variants_.size() && !variants_[variant].empty();
}

double TimeTable::predict(int32_t variant, int64_t tiles) const {
    const std::vector<TimePoint> &points = variants_[variant];
    return predict_time(points.data(), static_cast<int32_t>(points.size()), tiles);
}

}  // namespace distile
