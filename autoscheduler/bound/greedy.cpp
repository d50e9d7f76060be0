#include "autoscheduler/bound/greedy.h"
#include <algorithm>
#include <cstddef>
#include <numeric>

namespace distile {

double mean(const Costs &costs) {
    return std::accumulate(costs.begin(), costs.end(), 0.0) / static_cast<double>(costs.size());
}

Costs minimum(Costs costs, const Costs &others) {
    std::transform(costs.begin(), costs.end(), others.begin(), costs.begin(),
                   [](double a, double b) { return std::min(a, b); });
    return costs;
}

ChosenSet choose_greedily(const Costs &base, const std::vector<Costs> &schedules, int k, double least_gain) {
    ChosenSet chosen;
    Costs costs = base;
    chosen.costs.push_back(mean(costs));
    while (static_cast<int>(chosen.members.size()) < k) {
        int best = -1;
        double best_cost = chosen.costs.back();
        for (int i = 0; i < static_cast<int>(schedules.size()); i++) {
            double sum = 0;
            for (size_t mask = 0; mask < costs.size(); mask++) {
                sum += std::min(costs[mask], schedules[i][mask]);
            }
            const double cost = sum / static_cast<double>(costs.size());
            if (cost < best_cost) {
                best_cost = cost;
                best = i;
            }
        }
        if (best < 0 || best_cost > chosen.costs.back() * (1 - least_gain)) {
            break;
        }
        costs = minimum(std::move(costs), schedules[best]);
        chosen.members.push_back(best);
        chosen.costs.push_back(best_cost);
    }
    return chosen;
}

}  // namespace distile
