/** \file
 * Means over operators, as tables show them.
 */
#ifndef DISTILE_BENCH_MEAN_H
#define DISTILE_BENCH_MEAN_H

#include <cmath>
#include <fmt/core.h>
#include <string>

namespace distile::bench {

/** A geometric mean, and the worst of it. */
class Mean {
public:
    void add(double value, const std::string &of = "") {
        logarithms_ += std::log(value);
        count_++;
        if (count_ == 1 || value < worst_) {
            worst_ = value;
            worst_of_ = of;
        }
    }
    bool empty() const {
        return count_ == 0;
    }
    double worst() const {
        return worst_;
    }
    double value() const {
        return std::exp(logarithms_ / count_);
    }
    /** The cell of a table: the mean, and in brackets the worst. */
    std::string text() const {
        return count_ == 0
                   ? "-"
                   : fmt::format("{:.2f} ({:.2f}{})", value(), worst_, worst_of_.empty() ? "" : " " + worst_of_);
    }

private:
    double logarithms_ = 0, worst_ = 0;
    int count_ = 0;
    std::string worst_of_;
};

}  // namespace distile::bench

#endif
