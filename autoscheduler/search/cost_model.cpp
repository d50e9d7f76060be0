#include "autoscheduler/search/cost_model.h"
#include <cmath>

namespace distile {

BoundModel::BoundModel(Workload workload) : workload_(std::move(workload)) {
}

void BoundModel::fit(const std::vector<Measurement> &measured) {
    double sum = 0;
    int count = 0;
    for (const Measurement &measurement : measured) {
        for (const MeasuredTime &time : measurement.times) {
            sum += std::log(time.us / bound(workload_, measurement.theta, time.tiles).us);
            count++;
        }
    }
    scale_ = count > 0 ? std::exp(sum / count) : 1;
}

std::vector<double> BoundModel::predict_us(const std::vector<std::pair<Theta, int64_t>> &points) const {
    std::vector<double> times;
    times.reserve(points.size());
    for (const auto &[theta, tiles] : points) {
        times.push_back(scale_ * bound(workload_, theta, tiles).us);
    }
    return times;
}

}  // namespace distile
