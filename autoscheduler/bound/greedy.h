/** \file
 * The greedy choice of a set of schedules that are fastest together: each mask, or density, takes the fastest.
 */
#ifndef DISTILE_GREEDY_H
#define DISTILE_GREEDY_H

#include <vector>

namespace distile {

/** The costs of one schedule, by mask. */
using Costs = std::vector<double>;

double mean(const Costs &costs);
/** Mask by mask. */
Costs minimum(Costs costs, const Costs &others);

/** Members of a set in the order in which they were chosen. */
struct ChosenSet {
    std::vector<int> members;
    std::vector<double> costs; /**< costs[i]: the mean of the set's first i members; costs[0] is that of the base. */
};

/** Adds the schedule with the best marginal gain to a base, k times, or until none lowers the mean cost by this part.
 * Within 1 - 1/e of the best set's gain if the part is 0. Ties go to the first. */
ChosenSet choose_greedily(const Costs &base, const std::vector<Costs> &schedules, int k, double least_gain = 0);

}  // namespace distile

#endif
