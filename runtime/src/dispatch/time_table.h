/** \file
 * Time tables: how long each variant takes for a number of tiles, by number of threads.
 */
#ifndef DISTILE_TIME_TABLE_H
#define DISTILE_TIME_TABLE_H

#include <cstdint>
#include <distile/polykernel.h>
#include <vector>

namespace distile {

class TimeTable {
public:
    struct Point {
        int64_t tiles;
        double microseconds;
    };

    TimeTable() = default;
    /** Keeps, for each variant, the points of the number of threads nearest to `threads`. */
    TimeTable(const std::vector<distile_time_point> &points, int32_t num_variants, int32_t threads);

    /** True if the variant has at least one point. */
    bool knows(int32_t variant) const;
    /** The time in microseconds: linear between points, the first one's below it, and at the last one's rate
     * for each tile beyond it. Needs knows(variant). */
    double predict(int32_t variant, int64_t tiles) const;

    /** The points that are kept of a variant, by tiles. */
    const std::vector<Point> &points(int32_t variant) const {
        return variants_[variant];
    }

private:
    std::vector<std::vector<Point>> variants_;
};

}  // namespace distile

#endif
