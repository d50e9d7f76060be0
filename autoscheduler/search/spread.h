/** \file
 * The middle of repeated measurements.
 */
#ifndef DISTILE_SPREAD_H
#define DISTILE_SPREAD_H

#include <algorithm>
#include <cstddef>
#include <vector>

namespace distile {

/** The median of some times, at least one, and their middle half. */
struct Spread {
    double low, median, high;

    explicit Spread(std::vector<double> times) {
        std::sort(times.begin(), times.end());
        const size_t size = times.size();
        low = times[size / 4];
        median = times[size / 2];
        high = times[size - 1 - size / 4];
    }
};

}  // namespace distile

#endif
