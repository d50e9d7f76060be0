/** \file
 * What a search found, from its log: as JSON, as a table, and as figures.
 */
#ifndef DISTILE_REPORT_H
#define DISTILE_REPORT_H

#include "autoscheduler/search/mask_set.h"
#include "autoscheduler/search/search_log.h"
#include "plans/plan.h"
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace distile {

/** All results: the costs (mean 1/eta against the search's own dense candidate) of the sets of 0 to
 * k variants, the granularities that they take by density, how the search converged, and how well bound and learned
 * model order what was measured. `held_out` may be null. `plans` are compared with the search, by the log's
 * measurements of their variants and with the search's dense candidate. Throws FileError. */
nlohmann::json make_report(const LogContents &log, const MaskSet &masks, const MaskSet *held_out, int k,
                           const std::vector<Plan> &plans = {});

/** A report in words and tables. */
std::string describe_report(const nlohmann::json &report);

/** Writes a report's figures as SVG files, and returns their paths, which begin with `prefix`. Throws FileError. */
std::vector<std::string> write_figures(const nlohmann::json &report, const std::string &prefix);

/** The cost of the best set of at most k variants after numbers of trials. */
struct Convergence {
    std::vector<size_t> trials;
    std::vector<double> seconds, costs;
};

/** The course of a search in a number of steps. */
Convergence convergence(const std::vector<Measurement> &measured, const MaskSet &masks, int k, size_t steps);

/** Spearman's rank correlation. */
double rank_correlation(const std::vector<double> &a, const std::vector<double> &b);

}  // namespace distile

#endif
