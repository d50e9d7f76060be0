#include "autoscheduler/search/objective.h"
#include "plans/operator.h"
#include <algorithm>
#include <limits>

namespace distile {

namespace {

/** All sets of at most `k` members from `first` on, added to those there are. */
void extend(const Costs &costs, const std::vector<Costs> &schedules, int first, int k, std::vector<int> &members,
            double &best_cost, std::vector<int> &best) {
    if (mean(costs) < best_cost) {
        best_cost = mean(costs);
        best = members;
    }
    for (int i = first; k > 0 && i < static_cast<int>(schedules.size()); i++) {
        members.push_back(i);
        extend(minimum(costs, schedules[i]), schedules, i + 1, k - 1, members, best_cost, best);
        members.pop_back();
    }
}

}  // namespace

double set_cost(const Costs &dense, const std::vector<Costs> &schedules, const std::vector<int> &members) {
    Costs costs = dense;
    for (int member : members) {
        costs = minimum(std::move(costs), schedules[member]);
    }
    return mean(costs);
}

ChosenSet choose_exhaustively(const Costs &dense, const std::vector<Costs> &schedules, int k) {
    ChosenSet chosen;
    std::vector<int> members;
    double best_cost = std::numeric_limits<double>::infinity();
    extend(dense, schedules, 0, k, members, best_cost, chosen.members);
    for (size_t size = 0; size <= chosen.members.size(); size++) {
        chosen.costs.push_back(
            set_cost(dense, schedules, {chosen.members.begin(), chosen.members.begin() + static_cast<long>(size)}));
    }
    return chosen;
}

Costs Objective::dense() const {
    Costs costs(masks_.size());
    for (size_t mask = 0; mask < costs.size(); mask++) {
        costs[mask] = cost(dense_us_, mask);
    }
    return costs;
}

Costs Objective::costs(const Measurement &measurement) const {
    const std::vector<int64_t> &tiles = masks_.tiles({measurement.theta.at("tile_h"), measurement.theta.at("tile_w")});
    Costs costs(masks_.size());
    for (size_t mask = 0; mask < costs.size(); mask++) {
        costs[mask] = cost(measurement.at(tiles[mask]), mask);
    }
    return costs;
}

const Measurement *best_dense(const std::vector<Measurement> &measured) {
    const Measurement *best = nullptr;
    for (const Measurement &measurement : measured) {
        if (measurement.dense && measurement.ok() && (!best || measurement.times.back().us < best->times.back().us)) {
            best = &measurement;
        }
    }
    return best;
}

std::vector<const Measurement *> sparse_measurements(const std::vector<Measurement> &measured) {
    std::vector<const Measurement *> sparse;
    for (const Measurement &measurement : measured) {
        if (!measurement.dense && measurement.ok()) {
            sparse.push_back(&measurement);
        }
    }
    return sparse;
}

Solution solve(const std::vector<Measurement> &measured, const MaskSet &masks, int k) {
    Solution solution;
    solution.dense = best_dense(measured);
    if (!solution.dense) {
        throw FileError("no dense schedule was measured successfully, so there is nothing to compare with");
    }
    const Objective objective(masks, solution.dense->times.back().us);
    const std::vector<const Measurement *> sparse = sparse_measurements(measured);
    std::vector<Costs> schedules;
    Costs all = objective.dense();
    for (const Measurement *measurement : sparse) {
        schedules.push_back(objective.costs(*measurement));
        all = minimum(std::move(all), schedules.back());
    }
    const ChosenSet chosen = choose_greedily(objective.dense(), schedules, k);
    for (int member : chosen.members) {
        solution.members.push_back(sparse[member]);
    }
    solution.costs = chosen.costs;
    if (solution.members.empty() && k > 0 && !sparse.empty()) {
        // Other masks may need it.
        const auto nearest = std::min_element(schedules.begin(), schedules.end(),
                                              [](const Costs &a, const Costs &b) { return mean(a) < mean(b); });
        solution.members.push_back(sparse[nearest - schedules.begin()]);
        solution.costs.push_back(solution.costs.back());
    }
    solution.oracle = mean(all);
    return solution;
}

std::vector<double> costs_on(const Solution &solution, const MaskSet &masks) {
    const Objective objective(masks, solution.dense->times.back().us);
    Costs costs = objective.dense();
    std::vector<double> means = {mean(costs)};
    for (const Measurement *member : solution.members) {
        costs = minimum(std::move(costs), objective.costs(*member));
        means.push_back(mean(costs));
    }
    return means;
}

double oracle_cost(const std::vector<Measurement> &measured, const MaskSet &masks) {
    return solve(measured, masks, 0).oracle;
}

}  // namespace distile
