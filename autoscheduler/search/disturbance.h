/** \file
 * Whether the times of repeated calls can be trusted. While other programs run, they cannot.
 */
#ifndef DISTILE_DISTURBANCE_H
#define DISTILE_DISTURBANCE_H

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace distile {

/** A variant that was timed several times with some number of tiles. */
struct RepeatedTime {
    std::string variant;
    int64_t tiles = 0;
    std::vector<double> us; /**< At least one. */
};

/** What disturbed a measurement most. */
struct Disturbance {
    double degree = 0; /**< In parts of what can be borne: above 1 the times are doubtful. */
    std::string words; /**< What was noticed, as a clause; "" if nothing was. */

    bool is_bearable() const {
        return degree <= 1;
    }
};

/** How many times what was disturbed is measured at most. */
constexpr int most_attempts = 3;

/** From the time that other programs took, the share of `waited` of the time in which a thread could have run; from the
 * repeats of a call, which differ little on an idle machine. */
Disturbance disturbance_of(const std::vector<RepeatedTime> &points, double waited);
/** What disturbed a device whose times grow with the number of tiles, as those of a CPU do: fewer tiles of a variant do
 * not take longer than more. */
Disturbance disturbance_with_order(std::vector<RepeatedTime> points, double waited);

/** Why times are doubtful, as a sentence without its end; "" if they are not. */
std::string doubt_of(const Disturbance &disturbance);

/** The result of the first attempt that is not disturbed beyond what can be borne, or of the least disturbed one.
 * Results have a `disturbance`. */
template<typename Measure> auto steadiest(const Measure &measure) {
    auto best = measure();
    for (int attempt = 1; attempt < most_attempts && !best.disturbance.is_bearable(); attempt++) {
        auto next = measure();
        if (next.disturbance.degree < best.disturbance.degree) {
            best = std::move(next);
        }
    }
    return best;
}

}  // namespace distile

#endif
