#include "measurer.h"
#include <algorithm>
#include <cmath>

namespace distile {

namespace {

/** A change of the reference's time that makes a measurement worthless. */
constexpr double most_drift = 0.05;

}  // namespace

double unsteadiness(const WorkerResult &result, double expected_us) {
    const double us = result.measurement.reference_us;
    return std::max(result.drift, us > 0 && expected_us > 0 ? std::abs(us / expected_us - 1) : 0);
}

bool is_steady(const WorkerResult &result, double expected_us) {
    return unsteadiness(result, expected_us) <= most_drift;
}

ReplayMeasurer::ReplayMeasurer(const std::vector<Measurement> &pool) {
    for (const Measurement &measurement : pool) {
        pool_.emplace(std::make_pair(measurement.theta, measurement.dense), measurement);
    }
}

void ReplayMeasurer::measure(const std::vector<Trial> &batch, const std::function<void(const Measurement &)> &done) {
    for (const Trial &trial : batch) {
        const auto found = pool_.find({trial.theta, trial.dense});
        Measurement measurement;
        if (found != pool_.end()) {
            measurement = found->second;
        } else {
            measurement.theta = trial.theta;
            measurement.dense = trial.dense;
            measurement.outcome = Outcome::NotCompiled;
            measurement.message = "it is not among what was measured";
        }
        elapsed_s_ += measurement.compile_s + measurement.measure_s;
        measurement.elapsed_s = elapsed_s_;
        done(measurement);
    }
}

}  // namespace distile
