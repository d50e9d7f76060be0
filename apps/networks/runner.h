/** \file
 * Checks and times a network, and counts its memory.
 */
#ifndef DISTILE_NETWORKS_RUNNER_H
#define DISTILE_NETWORKS_RUNNER_H

#include "network.h"
#include <nlohmann/json_fwd.hpp>

namespace distile::networks {

/** The largest difference of a result from the reference, in each tensor relative to its largest value. */
constexpr double error_bound = 1e-4;

/** Reports what takes long: what, how much is done, and of how much (0: unknown). */
using Progress = std::function<void(const std::string &what, int64_t done, int64_t total)>;

struct Check {
    std::vector<double> densities;
    double error = 0;      /**< The largest error of the masked step, against the reference. */
    double difference = 0; /**< The difference of the masked step from the dense one: what the masks change. */
    int64_t layers = 0;
    double density() const;
};

/** One of the two ways that are timed. */
struct Timing {
    double milliseconds = 0;               /**< Median of a step. */
    std::map<std::string, double> by_type; /**< Medians by type of layer. */
    int64_t step_bytes = 0;                /**< The most that a step holds beside what stays. */
};

struct Timings {
    Timing masked, dense;
    int64_t weights_bytes = 0;
    int rounds = 0;
};

/** The operators without a PolyKernel, with sizes. They run as plain loops. */
std::vector<std::pair<Operator, distile_tensor>> missing_polykernels(Engine &engine, Network &network);
/** Runs the network masked, by reference, and dense. Starts it before. */
Check check(Engine &engine, Network &network, const Progress &progress);
/** Times masked and dense steps in turn for `seconds` seconds. */
Timings measure(Engine &engine, Network &network, double seconds, const Progress &progress);

/** The results for people, and for programs. `timings` may be null. */
std::string text_of(const Check &check, const Timings *timings);
nlohmann::json json_of(const Check &check, const Timings *timings);

/** The largest difference of two results, in each tensor over the largest value expected; infinite for a NaN, and where
 * the shapes differ. */
double error_of(const std::vector<Tensor> &result, const std::vector<Tensor> &expected);

}  // namespace distile::networks

#endif
