#include "measurer.h"

namespace distile {

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
