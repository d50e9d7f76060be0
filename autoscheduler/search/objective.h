/** \file
 * The objective of a search, equations (1) to (7) of DynaSpa: the cost of a set of schedules over masks, and the choice
 * of a set by it.
 *
 * The cost of a schedule for a mask is its time over t_dense x work, a time proportional to the mask's work. The cost
 * of a set is the mean over all masks, each with the fastest schedule of the set: the mean of 1/eta. Every set holds
 * the dense candidate, which is not counted.
 */
#ifndef DISTILE_OBJECTIVE_H
#define DISTILE_OBJECTIVE_H

#include "autoscheduler/bound/greedy.h"
#include "autoscheduler/search/mask_set.h"
#include "autoscheduler/search/measurement.h"
#include <vector>

namespace distile {

/** The cost of a set that holds the dense candidate and those of `schedules` that `members` names by index. */
double set_cost(const Costs &dense, const std::vector<Costs> &schedules, const std::vector<int> &members);

/** The best set of at most k of all there are. For small numbers of schedules. */
ChosenSet choose_exhaustively(const Costs &dense, const std::vector<Costs> &schedules, int k);

/** Costs of measured times over masks. */
class Objective {
public:
    /** `dense_us` is the time of the best dense candidate. */
    Objective(const MaskSet &masks, double dense_us) : masks_(masks), dense_us_(dense_us) {
    }

    /** The costs of the dense candidate: 1 / work. */
    Costs dense() const;
    Costs costs(const Measurement &measurement) const;
    /** The cost of a time for one mask. */
    double cost(double us, size_t mask) const {
        return us / (dense_us_ * masks_.work(mask));
    }

private:
    const MaskSet &masks_;
    double dense_us_;
};

/** The fastest dense measurement for the whole image; null if there is none. */
const Measurement *best_dense(const std::vector<Measurement> &measured);

/** The successful measurements of sparse schedules. */
std::vector<const Measurement *> sparse_measurements(const std::vector<Measurement> &measured);

/** A set chosen greedily from measurements: the last step of Algorithm 1. */
struct Solution {
    const Measurement *dense = nullptr;
    std::vector<const Measurement *> members;
    std::vector<double> costs; /**< The costs of the chosen set, as in ChosenSet. */
    double oracle = 0;         /**< The cost of the set of everything measured. */
};

/** With `k` above 0 it has a sparse member where one was measured, even if none gains anything. Throws FileError where
 * no dense candidate was measured. The result points into `measured`. */
Solution solve(const std::vector<Measurement> &measured, const MaskSet &masks, int k);

/** The costs on other masks of a solution's first 0, 1, ... members. */
std::vector<double> costs_on(const Solution &solution, const MaskSet &masks);

/** The cost of everything measured on masks, each taking its fastest: what no choice of a set can beat. */
double oracle_cost(const std::vector<Measurement> &measured, const MaskSet &masks);

}  // namespace distile

#endif
