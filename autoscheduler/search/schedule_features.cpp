#include "autoscheduler/search/schedule_features.h"
#include <algorithm>
#include <cmath>
#include <limits>

namespace distile {

namespace {

/** Features of the operator and the tiles, besides the knobs. */
constexpr size_t common_features = 10;

float log2_of(double value) {
    return static_cast<float>(std::log2(std::max(value, 1e-9)));
}

}  // namespace

size_t Features::size() const {
    return common_features + space_.knobs.size() + (with_bound_ ? 1 + terms_.size() : 0);
}

void Features::append(std::vector<float> &rows, const Workload &workload, const Theta &theta, int64_t tiles, bool dense,
                      const Bound &bound) {
    const Problem &problem = workload.problem;
    const double pixels = static_cast<double>(tiles) * theta.at("tile_h") * theta.at("tile_w");
    const double all_pixels = static_cast<double>(workload.batch) * workload.height * workload.width;
    const double kernel = static_cast<double>(problem.kernel_h) * problem.kernel_w;
    for (double value :
         {static_cast<double>(tiles), pixels, pixels / all_pixels, kernel, static_cast<double>(problem.in_channels),
          static_cast<double>(problem.out_channels), kernel * problem.in_channels * problem.out_channels * pixels,
          static_cast<double>(problem.stride_h) * problem.stride_w, static_cast<double>(workload.threads)}) {
        rows.push_back(log2_of(value));
    }
    rows.push_back(dense ? 1.0f : 0.0f);
    for (const Knob &knob : space_.knobs) {
        rows.push_back(log2_of(1.0 + theta.at(knob.name)));
    }
    if (!with_bound_) {
        return;
    }
    rows.push_back(log2_of(bound.us));
    if (terms_.empty()) {
        for (const auto &[name, value] : bound.terms) {
            terms_.push_back(name);
        }
    }
    for (const std::string &name : terms_) {
        const auto found = bound.terms.find(name);
        const bool time = name.rfind("t_", 0) == 0;
        rows.push_back(found == bound.terms.end() ? std::numeric_limits<float>::quiet_NaN()
                       : time                     ? static_cast<float>(found->second / bound.us)
                                                  : log2_of(found->second));
    }
}

}  // namespace distile
