/** \file
 * Time tables: the time of each variant by number of tiles and threads.
 */
#ifndef DISTILE_TIME_TABLE_H
#define DISTILE_TIME_TABLE_H

#include "runtime/choice/choose_variant.h"
#include <distile/polykernel.h>
#include <vector>

namespace distile {

class TimeTable {
public:
    TimeTable() = default;
    /** Keeps each variant's points for a number of threads. If it has none for this number, those of the nearest fewer
     * and more threads give them: their times change linearly with 1 / threads. Beyond all of its numbers the nearest
     * one stands. */
    TimeTable(const std::vector<distile_time_point> &points, int32_t num_variants, int32_t threads);

    /** True if the variant has at least one point. */
    bool knows(int32_t variant) const;
    /** predict_time() of the variant's points. Requires knows(variant). */
    double predict(int32_t variant, int64_t tiles) const;

    /** A variant's points, ordered by tiles. */
    const std::vector<TimePoint> &points(int32_t variant) const {
        return variants_[variant];
    }

private:
    std::vector<std::vector<TimePoint>> variants_;
};

}  // namespace distile

#endif
