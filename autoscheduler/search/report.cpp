#include "autoscheduler/search/report.h"
#include "autoscheduler/search/learned_model.h"
#include "autoscheduler/search/objective.h"
#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

namespace distile {

namespace {

using nlohmann::json;

/** Bounds between the densities that stand together. */
constexpr double density_bounds[] = {.05, .1, .2, .3, .5, .7, 1.01};
/** Exhaustive choice is for as many schedules as this. */
constexpr size_t most_exhaustive = 24;
constexpr int most_exhaustive_k = 4;

double rounded(double value) {
    return std::round(value * 1e4) / 1e4;
}

std::vector<double> ranks(const std::vector<double> &values) {
    std::vector<size_t> order(values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
    std::vector<double> result(values.size());
    for (size_t first = 0; first < order.size();) {
        size_t last = first;
        while (last + 1 < order.size() && values[order[last + 1]] == values[order[first]]) {
            last++;
        }
        // Equal values share the mean of their ranks.
        for (size_t i = first; i <= last; i++) {
            result[order[i]] = 0.5 * static_cast<double>(first + last);
        }
        first = last + 1;
    }
    return result;
}

/** The mean cost of each schedule alone, by its measured times, and by those that a model predicts for the same tiles.
 */
struct Scatter {
    std::vector<double> measured, predicted;
};

Scatter scatter(const std::vector<const Measurement *> &sparse, const Objective &objective, const CostModel &model) {
    std::vector<std::pair<Theta, int64_t>> points;
    for (const Measurement *measurement : sparse) {
        for (const MeasuredTime &time : measurement->times) {
            points.emplace_back(measurement->theta, time.tiles);
        }
    }
    const std::vector<double> times = model.predict_us(points);
    const auto mean_cost = [&](const Measurement &measurement) {
        const Costs costs = objective.costs(measurement);
        return std::accumulate(costs.begin(), costs.end(), 0.0) / static_cast<double>(costs.size());
    };
    Scatter result;
    size_t next = 0;
    for (const Measurement *measurement : sparse) {
        Measurement predicted = *measurement;
        for (MeasuredTime &time : predicted.times) {
            time.us = times[next++];
        }
        result.measured.push_back(mean_cost(*measurement));
        result.predicted.push_back(mean_cost(predicted));
    }
    return result;
}

/** How well a learned model orders schedules that it did not see: each half is predicted from the other. */
Scatter cross_validate(const LogContents &log, const std::vector<const Measurement *> &sparse,
                       const Objective &objective, const Workload &workload) {
    Scatter all;
    for (size_t half = 0; half < 2; half++) {
        std::vector<Measurement> seen;
        std::vector<const Measurement *> unseen;
        for (size_t i = 0; i < sparse.size(); i++) {
            if (i % 2 == half) {
                seen.push_back(*sparse[i]);
            } else {
                unseen.push_back(sparse[i]);
            }
        }
        LearnedModel model(space_of(log.header.backend, workload.problem), workload, {});
        model.fit(seen);
        const Scatter part = scatter(unseen, objective, model);
        all.measured.insert(all.measured.end(), part.measured.begin(), part.measured.end());
        all.predicted.insert(all.predicted.end(), part.predicted.begin(), part.predicted.end());
    }
    return all;
}

std::string granularity_of(const Theta &theta) {
    return fmt::format("{}x{}", theta.at("tile_h"), theta.at("tile_w"));
}

/** By density, how many masks take each variant, and what they cost. */
json by_density(const Solution &solution, const MaskSet &masks) {
    const Objective objective(masks, solution.dense->times.back().us);
    const Costs dense = objective.dense();
    std::vector<Costs> costs;
    for (const Measurement *member : solution.members) {
        costs.push_back(objective.costs(*member));
    }
    json rows = json::array();
    double least = 0;
    for (double most : density_bounds) {
        std::map<std::string, int> granularities;
        double density = 0, cost = 0, alone = 0;
        int count = 0;
        for (size_t mask = 0; mask < masks.size(); mask++) {
            if (masks.work(mask) < least || masks.work(mask) >= most) {
                continue;
            }
            double best = dense[mask];
            std::string granularity = "dense";
            for (size_t i = 0; i < costs.size(); i++) {
                if (costs[i][mask] < best) {
                    best = costs[i][mask];
                    granularity = granularity_of(solution.members[i]->theta);
                }
            }
            granularities[granularity]++;
            density += masks.work(mask);
            cost += best;
            alone += costs.empty() ? dense[mask] : std::min(dense[mask], costs[0][mask]);
            count++;
        }
        if (count > 0) {
            rows.push_back({{"density", rounded(density / count)},
                            {"masks", count},
                            {"granularities", granularities},
                            {"cost", rounded(cost / count)},
                            {"cost_of_first", rounded(alone / count)}});
        }
        least = most;
    }
    return rows;
}

/** The greedy choice against the best one, among the schedules that are best for some mask. */
json greedy_against_exhaustive(const std::vector<const Measurement *> &sparse, const MaskSet &masks,
                               const Objective &objective) {
    std::vector<Costs> all;
    all.reserve(sparse.size());
    for (const Measurement *measurement : sparse) {
        all.push_back(objective.costs(*measurement));
    }
    std::vector<size_t> wins(all.size());
    for (size_t mask = 0; mask < masks.size(); mask++) {
        const auto best =
            std::min_element(all.begin(), all.end(), [&](const Costs &a, const Costs &b) { return a[mask] < b[mask]; });
        if (best != all.end()) {
            wins[best - all.begin()]++;
        }
    }
    std::vector<size_t> order(all.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return wins[a] > wins[b]; });
    // Beside them the members of the greedy set, so that it can be found among them.
    std::vector<Costs> some;
    for (int member : choose_greedily(objective.dense(), all, most_exhaustive_k).members) {
        some.push_back(all[member]);
    }
    for (size_t i = 0; i < order.size() && some.size() < most_exhaustive; i++) {
        some.push_back(all[order[i]]);
    }
    json rows = json::array();
    for (int k = 1; k <= most_exhaustive_k; k++) {
        rows.push_back({{"k", k},
                        {"schedules", some.size()},
                        {"greedy", rounded(choose_greedily(objective.dense(), some, k).costs.back())},
                        {"exhaustive", rounded(choose_exhaustively(objective.dense(), some, k).costs.back())}});
    }
    return rows;
}

/** The cost of a plan's variants together, by what a log holds of them. */
json cost_of_plan(const Plan &plan, const LogContents &log, const Solution &solution, const MaskSet &masks,
                  const MaskSet *held_out) {
    Solution set;
    set.dense = solution.dense;
    for (const PlanVariant &variant : plan.variants) {
        if (variant.dense) {
            continue;
        }
        const auto found = std::find_if(log.measured.begin(), log.measured.end(), [&](const Measurement &measurement) {
            return measurement.ok() && !measurement.dense && measurement.theta == variant.theta;
        });
        if (found == log.measured.end()) {
            throw FileError("the log has no measurement of the variant \"" + variant.name + "\" of the plan '" +
                            plan.name + "': distile tune --include measures it");
        }
        set.members.push_back(&*found);
    }
    json row = {{"plan", plan.name}, {"k", set.members.size()}, {"cost", rounded(costs_on(set, masks).back())}};
    if (held_out) {
        row["held_out"] = rounded(costs_on(set, *held_out).back());
    }
    return row;
}

json points_of(const Scatter &points) {
    json rows = json::array();
    for (size_t i = 0; i < points.measured.size(); i++) {
        rows.push_back({rounded(points.predicted[i]), rounded(points.measured[i])});
    }
    return rows;
}

/** A figure with two axes, drawn as SVG. */
class Figure {
public:
    Figure(std::string title, std::string x_label, std::string y_label, bool log_x, bool log_y)
        : title_(std::move(title)), x_label_(std::move(x_label)), y_label_(std::move(y_label)), log_x_(log_x),
          log_y_(log_y) {
    }

    struct Series {
        std::string name, color;
        std::vector<std::pair<double, double>> points;
        bool line;
    };

    void add(Series series) {
        series_.push_back(std::move(series));
    }

    std::string svg() const {
        double x0 = 1e300, x1 = -1e300, y0 = 1e300, y1 = -1e300;
        for (const Series &series : series_) {
            for (const auto &[x, y] : series.points) {
                x0 = std::min(x0, place(x, log_x_));
                x1 = std::max(x1, place(x, log_x_));
                y0 = std::min(y0, place(y, log_y_));
                y1 = std::max(y1, place(y, log_y_));
            }
        }
        widen(x0, x1);
        widen(y0, y1);
        const auto x_of = [&](double x) { return left + (place(x, log_x_) - x0) / (x1 - x0) * (right - left); };
        const auto y_of = [&](double y) { return bottom - (place(y, log_y_) - y0) / (y1 - y0) * (bottom - top); };
        std::string text = fmt::format(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"640\" height=\"420\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n<rect width=\"640\" height=\"420\" fill=\"white\"/>\n"
            "<text x=\"320\" y=\"24\" text-anchor=\"middle\" font-size=\"15\">{}</text>\n"
            "<text x=\"{}\" y=\"408\" text-anchor=\"middle\">{}</text>\n"
            "<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
            title_, 0.5 * (left + right), x_label_, 0.5 * (top + bottom), y_label_);
        constexpr int ticks = 5;
        for (int i = 0; i <= ticks; i++) {
            const double x = back(x0 + (x1 - x0) * i / ticks, log_x_), y = back(y0 + (y1 - y0) * i / ticks, log_y_);
            text += fmt::format("<path d=\"M{0:.1f} {1}V{2}\" stroke=\"#ddd\"/>"
                                "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:.3g}</text>\n"
                                "<path d=\"M{5} {6:.1f}H{7}\" stroke=\"#ddd\"/>"
                                "<text x=\"{8}\" y=\"{9:.1f}\" text-anchor=\"end\">{10:.3g}</text>\n",
                                x_of(x), top, bottom, bottom + 16, x, left, y_of(y), right, left - 6, y_of(y) + 4, y);
        }
        int row = 0;
        for (const Series &series : series_) {
            std::string path;
            for (const auto &[x, y] : series.points) {
                if (series.line) {
                    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x_of(x), y_of(y));
                } else {
                    text += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\" "
                                        "fill-opacity=\"0.6\"/>\n",
                                        x_of(x), y_of(y), series.color);
                }
            }
            if (series.line) {
                text += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path,
                                    series.color);
            }
            if (!series.name.empty()) {
                text += fmt::format("<rect x=\"{0}\" y=\"{1}\" width=\"10\" height=\"10\" fill=\"{2}\"/>"
                                    "<text x=\"{3}\" y=\"{4}\">{5}</text>\n",
                                    right - 150, top + 8 + 18 * row, series.color, right - 134, top + 17 + 18 * row,
                                    series.name);
                row++;
            }
        }
        return text + "</svg>\n";
    }

private:
    static constexpr int left = 70, right = 620, top = 40, bottom = 370;

    static double place(double value, bool log) {
        return log ? std::log10(std::max(value, 1e-12)) : value;
    }
    static double back(double value, bool log) {
        return log ? std::pow(10.0, value) : value;
    }
    static void widen(double &from, double &to) {
        const double margin = to > from ? 0.04 * (to - from) : 0.5;
        from -= margin;
        to += margin;
    }

    std::string title_, x_label_, y_label_;
    bool log_x_, log_y_;
    std::vector<Series> series_;
};

constexpr const char *blue = "#266ebe", *orange = "#d9822b", *gray = "#889";
const char *const palette[] = {"#266ebe", "#d9822b", "#3a9a5b", "#b5495b", "#7b5ea7", "#5f6b7a", "#c2a83e"};

/** Bars by density, each of the parts of its masks that take a granularity. */
std::string granularity_figure(const json &rows) {
    std::map<std::string, const char *> colors;
    for (const json &row : rows) {
        for (const auto &[granularity, count] : row.at("granularities").items()) {
            colors.emplace(granularity, gray);
        }
    }
    size_t next = 0;
    for (auto &[granularity, color] : colors) {
        color = granularity == "dense" ? gray : palette[next++ % std::size(palette)];
    }
    std::string text =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"640\" height=\"420\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<rect width=\"640\" height=\"420\" fill=\"white\"/>\n"
        "<text x=\"320\" y=\"24\" text-anchor=\"middle\" font-size=\"15\">Granularity chosen by "
        "density (part of the masks)</text>\n";
    const double step = 460.0 / static_cast<double>(std::max<size_t>(rows.size(), 1));
    double x = 60;
    for (const json &row : rows) {
        double y = 370;
        for (const auto &[granularity, count] : row.at("granularities").items()) {
            const double height = 320.0 * count.get<double>() / row.at("masks").get<double>();
            y -= height;
            text += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x,
                                y, step * 0.8, height, colors.at(granularity));
        }
        text += fmt::format("<text x=\"{:.1f}\" y=\"388\" text-anchor=\"middle\">{:.2f}</text>\n", x + step * 0.4,
                            row.at("density").get<double>());
        x += step;
    }
    int row = 0;
    for (const auto &[granularity, color] : colors) {
        text += fmt::format("<rect x=\"540\" y=\"{0}\" width=\"10\" height=\"10\" fill=\"{1}\"/>"
                            "<text x=\"556\" y=\"{2}\">{3}</text>\n",
                            50 + 18 * row, color, 59 + 18 * row, granularity);
        row++;
    }
    return text + "</svg>\n";
}

}  // namespace

double rank_correlation(const std::vector<double> &a, const std::vector<double> &b) {
    const std::vector<double> x = ranks(a), y = ranks(b);
    const double mean = 0.5 * (static_cast<double>(x.size()) - 1);
    double xy = 0, xx = 0, yy = 0;
    for (size_t i = 0; i < x.size(); i++) {
        xy += (x[i] - mean) * (y[i] - mean);
        xx += (x[i] - mean) * (x[i] - mean);
        yy += (y[i] - mean) * (y[i] - mean);
    }
    return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

Convergence convergence(const std::vector<Measurement> &measured, const MaskSet &masks, int k, size_t steps) {
    Convergence course;
    std::vector<Measurement> known;
    double last = -1;
    for (const Measurement &measurement : measured) {
        known.push_back(measurement);
        // Steps grow with the trials: the beginning is what is seen of a logarithmic axis.
        const double step = std::floor(std::log(static_cast<double>(known.size())) /
                                       std::log(static_cast<double>(measured.size()) + 1) * static_cast<double>(steps));
        if (best_dense(known) && (step > last || known.size() == measured.size())) {
            last = step;
            course.trials.push_back(known.size());
            course.seconds.push_back(measurement.elapsed_s);
            course.costs.push_back(solve(known, masks, k).costs.back());
        }
    }
    return course;
}

json make_report(const LogContents &log, const MaskSet &masks, const MaskSet *held_out, int k,
                 const std::vector<Plan> &plans) {
    const Solution solution = solve(log.measured, masks, k);
    const std::vector<const Measurement *> sparse = sparse_measurements(log.measured);
    const Objective objective(masks, solution.dense->times.back().us);
    std::map<std::string, int> outcomes;
    for (const Measurement &measurement : log.measured) {
        outcomes[outcome_name(measurement.outcome)]++;
    }
    json report = {{"distile_report", 1},
                   {"operator", log.header.op.name},
                   {"summary", log.header.op.summary()},
                   {"device", log.header.device.name},
                   {"backend", log.header.backend},
                   {"target", log.header.target},
                   {"threads", log.header.threads},
                   {"trials", log.measured.size()},
                   {"seconds", log.measured.empty() ? 0 : log.measured.back().elapsed_s},
                   {"outcomes", outcomes},
                   {"masks", masks.size()},
                   {"dense", {{"theta", solution.dense->theta}, {"us", solution.dense->times.back().us}}},
                   {"oracle", rounded(solution.oracle)}};
    const std::vector<double> others = held_out ? costs_on(solution, *held_out) : std::vector<double>{};
    json sets = json::array();
    for (size_t size = 0; size < solution.costs.size(); size++) {
        json row = {{"k", size}, {"cost", rounded(solution.costs[size])}};
        if (held_out) {
            row["held_out"] = rounded(others[size]);
        }
        if (size > 0) {
            row["theta"] = solution.members[size - 1]->theta;
        }
        sets.push_back(row);
    }
    report["sets"] = sets;
    if (held_out) {
        report["held_out_masks"] = held_out->size();
        report["held_out_oracle"] = rounded(oracle_cost(log.measured, *held_out));
    }
    json judged = json::array();
    for (const Plan &plan : plans) {
        judged.push_back(cost_of_plan(plan, log, solution, masks, held_out));
    }
    report["plans"] = judged;
    report["densities"] = by_density(solution, held_out ? *held_out : masks);
    if (!sparse.empty()) {
        report["exhaustive"] = greedy_against_exhaustive(sparse, masks, objective);
        const Workload workload = workload_of(log.header);
        const Scatter bounds = scatter(sparse, objective, BoundModel(workload));
        report["bound"] = {{"rank_correlation", rounded(rank_correlation(bounds.predicted, bounds.measured))},
                           {"points", points_of(bounds)}};
        try {
            const Scatter learned = cross_validate(log, sparse, objective, workload);
            report["learned"] = {{"rank_correlation", rounded(rank_correlation(learned.predicted, learned.measured))},
                                 {"points", points_of(learned)}};
        } catch (const FileError &error) {
            report["learned"] = {{"missing", error.what()}};
        }
    }
    constexpr size_t steps = 40;
    const Convergence course = convergence(log.measured, masks, k, steps);
    json rows = json::array();
    for (size_t i = 0; i < course.trials.size(); i++) {
        rows.push_back({course.trials[i], std::round(course.seconds[i] * 10) / 10, rounded(course.costs[i])});
    }
    report["convergence"] = rows;
    return report;
}

std::string describe_report(const json &report) {
    std::string text = fmt::format("{}: {}\non {}, {} {}; {} trials in {:.0f} s",
                                   report.at("operator").get<std::string>(), report.at("summary").get<std::string>(),
                                   report.at("device").get<std::string>(), report.at("threads").get<int>(),
                                   std::string(get_backend(report.at("backend").get<std::string>()).worker) + "s",
                                   report.at("trials").get<int>(), report.at("seconds").get<double>());
    for (const auto &[outcome, count] : report.at("outcomes").items()) {
        text += outcome == "ok" ? "" : fmt::format(", {} {}", count.get<int>(), outcome);
    }
    const bool held_out = report.contains("held_out_oracle");
    text +=
        fmt::format("\nDense candidate: {:.1f} us\n\nMean 1/eta (1 is a speed-up proportional to the sparsity over it) "
                    "of sets of k variants:\n\n{:>8}{:>10}{}\n",
                    report.at("dense").at("us").get<double>(), "k", "masks", held_out ? "  held out" : "");
    for (const json &row : report.at("sets")) {
        text += fmt::format("{:>8}{:>10.4f}", row.at("k").get<int>(), row.at("cost").get<double>());
        text += held_out ? fmt::format("{:>10.4f}", row.at("held_out").get<double>()) : "";
        text +=
            row.contains("theta") ? "  + " + granularity_of(row.at("theta").get<Theta>()) + "\n" : "  dense alone\n";
    }
    text += fmt::format("{:>8}{:>10.4f}", "oracle", report.at("oracle").get<double>());
    text += held_out ? fmt::format("{:>10.4f}", report.at("held_out_oracle").get<double>()) : "";
    text += "  everything measured\n";
    for (const json &row : report.at("plans")) {
        text += fmt::format("{:>8}{:>10.4f}", row.at("k").get<size_t>(), row.at("cost").get<double>());
        text += held_out ? fmt::format("{:>10.4f}", row.at("held_out").get<double>()) : "";
        text +=
            fmt::format("  the plan {}, with the dense candidate of the search\n", row.at("plan").get<std::string>());
    }
    text += fmt::format("\n{:>8}{:>7}{:>10}{:>10}  granularities of the masks\n", "density", "masks", "1/eta", "k = 1");
    for (const json &row : report.at("densities")) {
        text +=
            fmt::format("{:>8.3f}{:>7}{:>10.4f}{:>10.4f} ", row.at("density").get<double>(), row.at("masks").get<int>(),
                        row.at("cost").get<double>(), row.at("cost_of_first").get<double>());
        for (const auto &[granularity, count] : row.at("granularities").items()) {
            text += fmt::format(" {}: {}", granularity, count.get<int>());
        }
        text += "\n";
    }
    if (report.contains("bound")) {
        text += fmt::format("\nRank correlation with the measured times: bound {:.3f}",
                            report.at("bound").at("rank_correlation").get<double>());
        if (report.at("learned").contains("rank_correlation")) {
            text += fmt::format(", learned model {:.3f} (on schedules that it did not see)",
                                report.at("learned").at("rank_correlation").get<double>());
        }
        text += "\nGreedy against exhaustive choice:";
        for (const json &row : report.at("exhaustive")) {
            text += fmt::format(" k = {}: {:.4f} / {:.4f}", row.at("k").get<int>(), row.at("greedy").get<double>(),
                                row.at("exhaustive").get<double>());
        }
        text += "\n";
    }
    return text;
}

std::vector<std::string> write_figures(const json &report, const std::string &prefix) {
    std::vector<std::string> paths;
    const auto write = [&](const std::string &name, const std::string &svg) {
        paths.push_back(prefix + name + ".svg");
        write_file(paths.back(), svg);
    };
    const auto pairs = [](const json &rows, size_t x, size_t y) {
        std::vector<std::pair<double, double>> points;
        for (const json &row : rows) {
            points.emplace_back(row.at(x).get<double>(), row.at(y).get<double>());
        }
        return points;
    };
    Figure course("Convergence", "trials", "mean 1/eta of the set", true, false);
    course.add({"", blue, pairs(report.at("convergence"), 0, 2), true});
    write("convergence", course.svg());

    std::vector<std::pair<double, double>> tuned, held_out;
    for (const json &row : report.at("sets")) {
        if (row.at("k") > 0) {
            tuned.emplace_back(row.at("k").get<double>(), row.at("cost").get<double>());
            if (row.contains("held_out")) {
                held_out.emplace_back(row.at("k").get<double>(), row.at("held_out").get<double>());
            }
        }
    }
    if (!tuned.empty()) {
        Figure sets("Greedy choice", "k", "mean 1/eta", false, false);
        sets.add({"masks of the search", blue, tuned, true});
        if (!held_out.empty()) {
            sets.add({"held-out masks", orange, held_out, true});
        }
        write("sets", sets.svg());
    }
    for (const char *model : {"bound", "learned"}) {
        if (report.contains(model) && report.at(model).contains("points")) {
            Figure figure(fmt::format("{} against measurement, rank correlation {:.3f}",
                                      model == std::string("bound") ? "Bound" : "Learned model",
                                      report.at(model).at("rank_correlation").get<double>()),
                          "predicted mean 1/eta", "measured mean 1/eta", true, true);
            figure.add({"", blue, pairs(report.at(model).at("points"), 0, 1), false});
            write(model, figure.svg());
        }
    }
    write("granularity", granularity_figure(report.at("densities")));
    return paths;
}

}  // namespace distile
