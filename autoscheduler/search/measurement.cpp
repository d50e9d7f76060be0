#include "autoscheduler/search/measurement.h"
#include "plans/plan.h"
#include "runtime/dispatch/time_table.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

namespace distile {

namespace {

using nlohmann::json;

constexpr std::array<const char *, 6> outcome_names = {"ok",        "not_compiled",  "crashed",
                                                       "timed_out", "out_of_memory", "wrong_result"};

double rounded(double value) {
    return std::round(value * 1000) / 1000;
}

}  // namespace

double Measurement::at(int64_t tiles) const {
    std::vector<distile_time_point> points;
    points.reserve(times.size());
    for (const MeasuredTime &time : times) {
        points.push_back({0, 1, time.tiles, time.us});
    }
    return TimeTable(points, 1, 1).predict(0, tiles);
}

std::vector<Measurement> without_drift(std::vector<Measurement> measured) {
    std::vector<double> references;
    for (const Measurement &measurement : measured) {
        if (measurement.reference_us > 0) {
            references.push_back(measurement.reference_us);
        }
    }
    if (references.empty()) {
        return measured;
    }
    const auto middle = references.begin() + static_cast<ptrdiff_t>(references.size() / 2);
    std::nth_element(references.begin(), middle, references.end());
    for (Measurement &measurement : measured) {
        if (measurement.reference_us > 0) {
            const double factor = *middle / measurement.reference_us;
            for (MeasuredTime &time : measurement.times) {
                time.us *= factor;
                time.low_us *= factor;
                time.high_us *= factor;
            }
            measurement.reference_us = *middle;
        }
    }
    return measured;
}

bool blames_tools(const std::string &printed) {
    for (const char *phrase : {"error while loading shared libraries", "cannot open shared object file",
                               "cannot be started", "is missing; it is needed to compile plans",
                               "No such file or directory", "No space left on device", "Disk quota exceeded"}) {
        if (printed.find(phrase) != std::string::npos) {
            return true;
        }
    }
    // After the generator, which may refuse a schedule, nothing depends on the schedule.
    const size_t failed = printed.find("' failed; it printed:");
    const std::string generator = "distile_generators";
    return failed != std::string::npos &&
           (failed < generator.size() || printed.compare(failed - generator.size(), generator.size(), generator) != 0);
}

const char *outcome_name(Outcome outcome) {
    return outcome_names.at(static_cast<size_t>(outcome));
}

json to_json(const Measurement &measurement) {
    json result = {{"theta", measurement.theta},
                   {"outcome", outcome_name(measurement.outcome)},
                   {"compile_s", rounded(measurement.compile_s)},
                   {"measure_s", rounded(measurement.measure_s)},
                   {"elapsed_s", rounded(measurement.elapsed_s)}};
    if (measurement.dense) {
        result["dense"] = true;
    }
    if (!measurement.message.empty()) {
        result["message"] = measurement.message;
    }
    if (measurement.reference_us > 0) {
        result["reference_us"] = rounded(measurement.reference_us);
    }
    if (!measurement.doubt.empty()) {
        result["doubt"] = measurement.doubt;
    }
    if (measurement.ok()) {
        json times = json::array();
        for (const MeasuredTime &time : measurement.times) {
            times.push_back({time.tiles, rounded(time.us), rounded(time.low_us), rounded(time.high_us)});
        }
        result["times"] = times;
    }
    return result;
}

Measurement parse_measurement(const json &json, const std::string &where) {
    check_members(json,
                  {"theta", "dense", "outcome", "message", "compile_s", "measure_s", "reference_us", "doubt",
                   "elapsed_s", "times"},
                  where);
    try {
        Measurement result;
        result.theta = parse_theta(json.at("theta"), where);
        result.dense = json.value("dense", false);
        const auto name = json.at("outcome").get<std::string>();
        const auto found = std::find(outcome_names.begin(), outcome_names.end(), name);
        if (found == outcome_names.end()) {
            throw FileError(where + ": there is no outcome \"" + name + "\"");
        }
        result.outcome = static_cast<Outcome>(found - outcome_names.begin());
        result.message = json.value("message", "");
        result.doubt = json.value("doubt", "");
        result.compile_s = json.value("compile_s", 0.0);
        result.measure_s = json.value("measure_s", 0.0);
        result.reference_us = json.value("reference_us", 0.0);
        result.elapsed_s = json.value("elapsed_s", 0.0);
        if (result.ok()) {
            for (const auto &row : json.at("times")) {
                if (!row.at(0).is_number_integer()) {
                    throw FileError(where + ": a number of tiles is not an integer");
                }
                MeasuredTime time{row.at(0).get<int64_t>(), row.at(1).get<double>(), row.at(2).get<double>(),
                                  row.at(3).get<double>()};
                if (time.tiles < 1 || !(time.us > 0) ||
                    (!result.times.empty() && time.tiles <= result.times.back().tiles)) {
                    throw FileError(where + ": its times must be above 0, for ascending numbers of tiles");
                }
                result.times.push_back(time);
            }
            if (result.times.empty()) {
                throw FileError(where + ": its outcome is ok, but it has no times");
            }
        }
        return result;
    } catch (const nlohmann::json::exception &error) {
        throw FileError(where + ": this is not a measurement (" + error.what() + ")");
    }
}

}  // namespace distile
