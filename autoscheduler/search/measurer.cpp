#include "autoscheduler/search/measurer.h"
#include <algorithm>
#include <cmath>

namespace distile {

namespace {

/** A change of the reference's time after which one measures again, and one that leaves no trust. */
constexpr double most_drift = 0.05, doubtful_drift = 0.5;

/** The relative change of the reference's time. */
double drift_of(const WorkerResult &result, double expected_us) {
    const double us = result.measurement.reference_us;
    return std::max(result.drift, us > 0 && expected_us > 0 ? std::abs(us / expected_us - 1) : 0);
}

}  // namespace

double unsteadiness(const WorkerResult &result, double expected_us) {
    return std::max(drift_of(result, expected_us) / most_drift, result.disturbance.degree);
}

bool is_steady(const WorkerResult &result, double expected_us) {
    return unsteadiness(result, expected_us) <= 1;
}

std::string doubt_of(const WorkerResult &result, double expected_us) {
    const double drift = drift_of(result, expected_us);
    const Disturbance by_drift{drift / doubtful_drift, "the time of one schedule changed by " +
                                                           std::to_string(std::lround(100 * drift)) + " % meanwhile"};
    return doubt_of(result.disturbance.is_bearable() ? by_drift : result.disturbance);
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
