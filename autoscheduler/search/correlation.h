/** \file
 * How well the present bound orders the schedules that it keeps, by the measurements of a log.
 */
#ifndef DISTILE_CORRELATION_H
#define DISTILE_CORRELATION_H

#include "autoscheduler/bound/bound.h"
#include "autoscheduler/search/search_log.h"
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace distile {

struct CorrelationOptions {
    /** Densities of the ranking. At 1 it judges dense schedules, below 1 sparse ones. */
    std::vector<double> densities = {.05, .1, .3, .5, 1};
    int first = 20; /**< Schedules at the top of a ranking that are compared with the best known one. */
};

/** Ranks the log's operator again, and judges by what the log holds: for each density Spearman's correlation of the
 * time with the bound, and with the place in the ranking, which breaks ties, over the measured schedules that the
 * ranking keeps, and the best of its first ones against the best
 * measured. Times are interpolated at the density's tiles; schedules that were measured at less than half of those, or
 * at more than twice as many, do not count. `log.header.device` may be replaced to judge another profile. */
nlohmann::json make_correlation(const LogContents &log, const CorrelationOptions &options = {});

/** The first of a ranking at each of its densities, without repetitions; dense ones or sparse ones. */
std::vector<Theta> first_of_ranking(const Workload &workload, const CorrelationOptions &options, bool dense);

/** Tables of such results, an array, and their means. */
std::string describe_correlations(const nlohmann::json &results);

}  // namespace distile

#endif
