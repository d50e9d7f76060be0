#include "autoscheduler/search/disturbance.h"
#include "autoscheduler/search/spread.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <tuple>

namespace distile {

namespace {

/** The share of the time that others took, the spread of the repeats' middle half, and how much longer fewer tiles take
 * than more: each of them makes a measurement worthless. Idle machines stay far below. */
constexpr double most_waited = 0.05, most_spread = 1, most_disorder = 0.5;

void note(Disturbance &worst, double degree, const std::string &words) {
    if (degree > worst.degree) {
        worst = {degree, words};
    }
}

/** "3 tiles", of a variant if there are several. */
std::string in_words(const RepeatedTime &point) {
    return std::to_string(point.tiles) + " tiles" + (point.variant.empty() ? "" : " of '" + point.variant + "'");
}

std::string microseconds(double us) {
    char text[32];
    std::snprintf(text, sizeof(text), us < 10 ? "%.1f" : "%.0f", us);
    return text;
}

}  // namespace

Disturbance disturbance_of(const std::vector<RepeatedTime> &points, double waited) {
    Disturbance worst;
    note(worst, waited / most_waited,
         "other programs had its processors for " + std::to_string(std::lround(100 * waited)) +
             " % of the time that it could have run");
    for (const RepeatedTime &point : points) {
        const Spread spread(point.us);
        if (spread.low > 0) {
            note(worst, (spread.high / spread.low - 1) / most_spread,
                 in_words(point) + " took now " + microseconds(spread.low) + ", now " + microseconds(spread.high) +
                     " us");
        }
    }
    return worst;
}

Disturbance disturbance_with_order(std::vector<RepeatedTime> points, double waited) {
    Disturbance worst = disturbance_of(points, waited);
    std::stable_sort(points.begin(), points.end(), [](const RepeatedTime &a, const RepeatedTime &b) {
        return std::tie(a.variant, a.tiles) < std::tie(b.variant, b.tiles);
    });
    const RepeatedTime *slowest = nullptr;
    double slowest_us = 0;
    for (const RepeatedTime &point : points) {
        const double us = Spread(point.us).median;
        if (!slowest || slowest->variant != point.variant || us >= slowest_us) {
            slowest = &point;
            slowest_us = us;
        } else if (us > 0) {
            note(worst, (slowest_us / us - 1) / most_disorder,
                 in_words(*slowest) + " took " + microseconds(slowest_us) + " us, and " + std::to_string(point.tiles) +
                     " took " + microseconds(us) + " us");
        }
    }
    return worst;
}

std::string doubt_of(const Disturbance &disturbance) {
    return disturbance.is_bearable() ? "" : "the machine was busy: " + disturbance.words;
}

}  // namespace distile
