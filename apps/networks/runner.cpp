#include "runner.h"
#include "reference/plain_tokens.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

namespace distile::networks {

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::vector<Tensor> step(Engine &engine, Network &network, Mode mode) {
    engine.mode = mode;
    engine.start_step();
    std::vector<Tensor> results = network.step();
    engine.finish();
    return results;
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/** The steps of one way. */
struct Samples {
    std::vector<double> milliseconds;
    std::map<std::string, std::vector<double>> by_type;

    Timing medians() const {
        Timing timing;
        timing.milliseconds = median(milliseconds);
        for (const auto &[type, times] : by_type) {
            timing.by_type[type] = median(times);
        }
        return timing;
    }
};

std::set<std::string> types_of(const Timings &timings) {
    std::set<std::string> types;
    for (const Timing *timing : {&timings.masked, &timings.dense}) {
        for (const auto &[type, time] : timing->by_type) {
            types.insert(type);
        }
    }
    return types;
}

double time_of(const Timing &timing, const std::string &type) {
    const auto found = timing.by_type.find(type);
    return found == timing.by_type.end() ? 0 : found->second;
}

double megabytes(int64_t bytes) {
    return static_cast<double>(bytes) / 1e6;
}

double error_of(const Tensor &result, const Tensor &expected) {
    const distile_tensor &view = expected.view, &other = result.view;
    if (other.batch != view.batch || other.height != view.height || other.width != view.width ||
        other.channels != view.channels) {
        return HUGE_VAL;
    }
    double difference = 0, scale = 1e-30;
    for_each_pixel(view, [&](size_t /*pixel*/, int32_t n, int32_t y, int32_t x) {
        const float *found = result.at(n, y, x), *right = expected.at(n, y, x);
        for (int32_t c = 0; c < view.channels; c++) {
            const double error = std::abs(static_cast<double>(found[c]) - right[c]);
            difference = std::isnan(error) ? HUGE_VAL : std::max(difference, error);
            scale = std::max(scale, std::abs(static_cast<double>(right[c])));
        }
    });
    return difference / scale;
}

}  // namespace

double Check::density() const {
    return std::accumulate(densities.begin(), densities.end(), 0.0) / static_cast<double>(densities.size());
}

double error_of(const std::vector<Tensor> &result, const std::vector<Tensor> &expected) {
    double largest = result.size() == expected.size() ? 0 : HUGE_VAL;
    for (size_t i = 0; i < std::min(result.size(), expected.size()); i++) {
        largest = std::max(largest, error_of(result[i], expected[i]));
    }
    return largest;
}

std::vector<std::pair<Operator, distile_tensor>> missing_polykernels(Engine &engine, Network &network) {
    step(engine, network, Mode::dry);
    std::vector<std::pair<Operator, distile_tensor>> missing = engine.operators();
    missing.erase(std::remove_if(missing.begin(), missing.end(),
                                 [](const auto &sized) { return sized.first.polykernel() != nullptr; }),
                  missing.end());
    return missing;
}

Check check(Engine &engine, Network &network, const Progress &progress) {
    int64_t layers = 0;
    const auto reported = [&](const char *what) {
        return [&progress, &layers, what](int64_t layer) {
            progress(what, layer, layers);
            layers = std::max(layers, layer + 1);
        };
    };
    engine.before_layer = reported("starting: layer");
    network.start();
    Check check;
    const std::vector<Tensor> result = step(engine, network, Mode::masked);
    check.densities = network.densities();
    engine.before_layer = reported("checking by plain loops: layer");
    check.error = error_of(result, step(engine, network, Mode::reference));
    engine.before_layer = nullptr;
    check.difference = error_of(result, step(engine, network, Mode::dense));
    check.layers = layers;
    return check;
}

Timings measure(Engine &engine, Network &network, double seconds, const Progress &progress) {
    Samples masked, dense;
    Timings timings;
    std::pair<int64_t, int64_t> most;
    const Clock::time_point start = Clock::now();
    Clock::time_point timed = start;
    // The first round warms up.
    for (int round = -1; round < 3 || milliseconds_since(timed) < seconds * 1e3; round++) {
        for (const bool is_masked : {true, false}) {  // In turns, so that other programs slow both.
            Samples &samples = is_masked ? masked : dense;
            const Clock::time_point before = Clock::now();
            step(engine, network, is_masked ? Mode::masked : Mode::dense);
            const double time = milliseconds_since(before);
            (is_masked ? most.first : most.second) = engine.most_bytes();
            if (round >= 0) {
                samples.milliseconds.push_back(time);
                for (const auto &[type, milliseconds] : engine.milliseconds()) {
                    samples.by_type[type].push_back(milliseconds);
                }
            }
        }
        timed = round < 0 ? Clock::now() : timed;
        timings.rounds = round + 1;
        progress("measuring: round", timings.rounds, 0);
    }
    const int64_t always = engine.live_bytes();
    timings.masked = masked.medians();
    timings.dense = dense.medians();
    timings.masked.step_bytes = most.first - always;
    timings.dense.step_bytes = most.second - always;
    timings.weights_bytes = engine.weights_bytes();
    return timings;
}

std::string text_of(const Check &check, const Timings *timings) {
    std::string text =
        fmt::format("mean density {:.3f} of {} masks\n  largest error {:.1e} of the largest value, below {:.0e}\n",
                    check.density(), check.densities.size(), check.error, error_bound);
    if (!timings) {
        return text;
    }
    const Timing &masked = timings->masked, &dense = timings->dense;
    text += fmt::format("  {:22} {:>9} {:>9}\n", "milliseconds", "masked", "dense");
    const auto row = [&](const std::string &name, double of_masked, double of_dense, int digits) {
        text += fmt::format("  {:22} {:9.{}f} {:9.{}f}\n", name, of_masked, digits, of_dense, digits);
    };
    row("a step", masked.milliseconds, dense.milliseconds, 2);
    for (const std::string &type : types_of(*timings)) {
        row("  " + type, time_of(masked, type), time_of(dense, type), 2);
    }
    text += fmt::format("  {:22} {:9.2f}, in {} rounds\n", "speed-up", dense.milliseconds / masked.milliseconds,
                        timings->rounds);
    text += fmt::format("  {:22} {:>9} {:>9}\n", "megabytes", "masked", "dense");
    row("weights", megabytes(timings->weights_bytes), megabytes(timings->weights_bytes), 1);
    row("a step", megabytes(masked.step_bytes), megabytes(dense.step_bytes), 1);
    return text;
}

nlohmann::json json_of(const Check &check, const Timings *timings) {
    nlohmann::json json = {
        {"densities", check.densities}, {"density", check.density()}, {"error", check.error}, {"bound", error_bound}};
    if (timings) {
        const auto of = [&](const Timing &timing) {
            return nlohmann::json{{"milliseconds", timing.milliseconds},
                                  {"milliseconds by type", timing.by_type},
                                  {"bytes of a step", timing.step_bytes}};
        };
        json["masked"] = of(timings->masked);
        json["dense"] = of(timings->dense);
        json["bytes of weights"] = timings->weights_bytes;
        json["rounds"] = timings->rounds;
    }
    return json;
}

}  // namespace distile::networks
