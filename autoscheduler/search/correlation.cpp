#include "autoscheduler/search/correlation.h"
#include "autoscheduler/bound/rank.h"
#include "autoscheduler/search/report.h"
#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <map>
#include <nlohmann/json.hpp>

namespace distile {

namespace {

using nlohmann::json;

/** Fewer points have no correlation worth a name. */
constexpr size_t least_points = 3;

/** A schedule that the ranking keeps, at one density. */
struct Place {
    const Theta *theta;
    int64_t tiles;
    double us, sum;
};

int64_t tiles_of(const Bucket &bucket, const Theta &theta) {
    return std::max<int64_t>(1, bucket.tiles(theta.at("tile_h"), theta.at("tile_w")));
}

/** The schedules that a ranking keeps, best first at one of its densities. */
std::vector<Place> order(const Workload &workload, const Ranking &ranking, const Bucket &bucket) {
    std::vector<Place> places;
    for (const Candidate &candidate : ranking.kept) {
        const int64_t tiles = tiles_of(bucket, candidate.theta);
        const Bound limit = bound(workload, candidate.theta, tiles);
        places.push_back({&candidate.theta, tiles, limit.us, limit.sum()});
    }
    std::stable_sort(places.begin(), places.end(),
                     [](const Place &a, const Place &b) { return std::tie(a.us, a.sum) < std::tie(b.us, b.sum); });
    return places;
}

/** Ranks as a search does: dense schedules for the whole image, and sparse ones for all densities below together. */
std::vector<Bucket> buckets_of(const Workload &workload, const CorrelationOptions &options, bool dense) {
    std::vector<Bucket> buckets;
    for (const double density : options.densities) {
        if ((density == 1) == dense) {
            buckets.push_back(density_bucket(workload, density));
        }
    }
    return buckets;
}

/** A measured time far from the tiles of a density says nothing about it. */
bool covers(const Measurement &measurement, int64_t tiles) {
    return measurement.times.front().tiles <= 2 * tiles && tiles <= 2 * measurement.times.back().tiles;
}

json judge(const std::vector<Place> &places, const Bucket &bucket, const std::vector<Measurement> &measured, bool dense,
           size_t first) {
    std::map<Theta, double> times;
    double best_known = INFINITY;
    for (const Measurement &measurement : measured) {
        const int64_t tiles = tiles_of(bucket, measurement.theta);
        if (measurement.ok() && measurement.dense == dense && covers(measurement, tiles)) {
            const double us = measurement.at(tiles);
            times[measurement.theta] = us;
            best_known = std::min(best_known, us);
        }
    }
    std::vector<double> bounds, numbers, kept_times;
    json points = json::array();
    size_t first_measured = 0;
    double best_of_first = INFINITY;
    for (size_t i = 0; i < places.size(); i++) {
        const auto found = times.find(*places[i].theta);
        if (found == times.end()) {
            continue;
        }
        bounds.push_back(places[i].us);
        numbers.push_back(static_cast<double>(i));
        kept_times.push_back(found->second);
        points.push_back({{"place", i},
                          {"theta", *places[i].theta},
                          {"tiles", places[i].tiles},
                          {"bound_us", places[i].us},
                          {"us", found->second}});
        if (i < first) {
            first_measured++;
            best_of_first = std::min(best_of_first, found->second);
        }
    }
    json row = {{"density", bucket.density},
                {"dense", dense},
                {"kept", places.size()},
                {"measured", times.size()},
                {"measured_kept", bounds.size()},
                {"first", std::min(first, places.size())},
                {"first_measured", first_measured},
                {"points", points}};
    const bool enough = bounds.size() >= least_points;
    row["rank_correlation"] = enough ? json(rank_correlation(bounds, kept_times)) : json();
    row["place_correlation"] = enough ? json(rank_correlation(numbers, kept_times)) : json();
    row["best_of_first"] = first_measured > 0 ? json(best_of_first / best_known) : json();
    return row;
}

/** The mean of a member over the rows that have it, or null. */
json mean(const json &rows, const char *member, bool geometric) {
    double sum = 0;
    int count = 0;
    for (const json &row : rows) {
        if (!row.at(member).is_null()) {
            const auto value = row.at(member).get<double>();
            sum += geometric ? std::log(value) : value;
            count++;
        }
    }
    if (count == 0) {
        return {};
    }
    return geometric ? std::exp(sum / count) : sum / count;
}

std::string figure(const json &value) {
    return value.is_null() ? "-" : fmt::format("{:.2f}", value.get<double>());
}

}  // namespace

json make_correlation(const LogContents &log, const CorrelationOptions &options) {
    const Workload workload = workload_of(log.header);
    json rows = json::array();
    for (const bool dense : {false, true}) {
        const std::vector<Bucket> buckets = buckets_of(workload, options, dense);
        if (buckets.empty()) {
            continue;
        }
        const Ranking ranking = rank(workload, buckets);
        for (const Bucket &bucket : buckets) {
            rows.push_back(judge(order(workload, ranking, bucket), bucket, log.measured, dense,
                                 static_cast<size_t>(options.first)));
        }
    }
    return {{"operator", log.header.op.name},
            {"summary", log.header.op.summary()},
            {"device", log.header.device.id()},
            {"threads", log.header.threads},
            {"densities", rows},
            {"rank_correlation", mean(rows, "rank_correlation", false)},
            {"place_correlation", mean(rows, "place_correlation", false)},
            {"best_of_first", mean(rows, "best_of_first", true)}};
}

std::vector<Theta> first_of_ranking(const Workload &workload, const CorrelationOptions &options, bool dense) {
    const std::vector<Bucket> buckets = buckets_of(workload, options, dense);
    std::vector<Theta> thetas;
    if (buckets.empty()) {
        return thetas;
    }
    const Ranking ranking = rank(workload, buckets);
    for (const Bucket &bucket : buckets) {
        const std::vector<Place> places = order(workload, ranking, bucket);
        for (size_t i = 0; i < std::min<size_t>(options.first, places.size()); i++) {
            if (std::find(thetas.begin(), thetas.end(), *places[i].theta) == thetas.end()) {
                thetas.push_back(*places[i].theta);
            }
        }
    }
    return thetas;
}

std::string describe_correlations(const json &results) {
    std::string text;
    size_t width = std::string("all").size();
    const auto correlations = [](const json &row) {
        return fmt::format("{:>8}{:>8}", figure(row.at("rank_correlation")), figure(row.at("place_correlation")));
    };
    for (const json &result : results) {
        width = std::max(width, result.at("operator").get<std::string>().size());
        text += fmt::format("{}: {}\non {}, {} threads\n\n{:>8}{:>8}{:>10}{:>10}{:>8}{:>8}{:>8}{:>8}\n",
                            result.at("operator").get<std::string>(), result.at("summary").get<std::string>(),
                            result.at("device").get<std::string>(), result.at("threads").get<int>(), "density", "kept",
                            "measured", "of these", "bound", "place", "first", "ratio");
        for (const json &row : result.at("densities")) {
            text += fmt::format("{:>8}{:>8}{:>10}{:>10}{}{:>8}{:>8}\n",
                                row.at("dense").get<bool>() ? "dense"
                                                            : fmt::format("{:g}", row.at("density").get<double>()),
                                row.at("kept").get<int>(), row.at("measured").get<int>(),
                                row.at("measured_kept").get<int>(), correlations(row),
                                fmt::format("{}/{}", row.at("first_measured").get<int>(), row.at("first").get<int>()),
                                figure(row.at("best_of_first")));
        }
        text += "\n";
    }
    text += fmt::format("{:<{}}{:>8}{:>8}{:>8}\n", "Means", width, "bound", "place", "ratio");
    for (const json &result : results) {
        text += fmt::format("{:<{}}{}{:>8}\n", result.at("operator").get<std::string>(), width, correlations(result),
                            figure(result.at("best_of_first")));
    }
    if (results.size() > 1) {
        const json all = {{"rank_correlation", mean(results, "rank_correlation", false)},
                          {"place_correlation", mean(results, "place_correlation", false)}};
        text += fmt::format("{:<{}}{}{:>8}\n", "all", width, correlations(all),
                            figure(mean(results, "best_of_first", true)));
    }
    return text + "\nkept: schedules that the bound keeps; measured: those of the log; of these: those that are both, "
                  "over which the\ntime is correlated (Spearman) with the bound, and with the place in the ranking, "
                  "which breaks ties. first: how\nmany of the first in the ranking were measured; ratio: the best of "
                  "these over the best measured.\n";
}

}  // namespace distile
