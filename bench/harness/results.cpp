#include "bench/harness/results.h"
#include "plans/json_rows.h"
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fmt/core.h>
#include <fstream>
#include <set>
#include <stdexcept>

namespace distile::bench {

namespace {

Json::const_iterator find_row(const Json &file, const std::string &name) {
    const Json &rows = file.at("rows");
    return std::find_if(rows.begin(), rows.end(), [&](const Json &row) { return row.at("row") == name; });
}

/** Throws std::exception if a file is not what this program writes. */
void check_file(const Json &file) {
    if (file.at("distile_bench") != 1) {
        throw std::runtime_error("'distile_bench' must be 1, the version that this program reads");
    }
    for (const auto &[field, value] : file.items()) {
        if (field != "distile_bench" && field != "header" && field != "rows") {
            throw std::runtime_error("it has an unknown field '" + field + "'");
        }
    }
    file.at("header").at("device");
    const std::set<std::string> kinds = {"convolution", "type",    "opencl",   "choice",    "bandwidth",  "mask",
                                         "select",      "pool",    "dispatch", "algebra",   "difference", "layout",
                                         "token",       "planner", "own",      "linear",    "attention",  "scores",
                                         "values",      "block",   "scaling",  "quantized", "group"};
    std::set<std::string> names;
    for (const Json &row : file.at("rows")) {
        const std::string name = row.at("row"), status = row.at("status");
        if (!names.insert(name).second) {
            throw std::runtime_error("the row '" + name + "' comes twice");
        }
        if (status != "measured" && status != "skipped" && status != "failed") {
            throw std::runtime_error(fmt::format("the row '{}' has an unknown status '{}'", name, status));
        }
        if (status == "measured" && kinds.count(row.at("kind")) == 0) {
            throw std::runtime_error(
                fmt::format("the row '{}' is of an unknown kind '{}'", name, row.at("kind").get<std::string>()));
        }
    }
}

}  // namespace

double rounded(double value) {
    return std::stod(fmt::format("{:.5g}", value));
}

Json to_json(const Spread &spread) {
    return {{"min", rounded(spread.minimum)},
            {"q1", rounded(spread.first_quartile)},
            {"median", rounded(spread.median)},
            {"q3", rounded(spread.third_quartile)}};
}

void add_times(Json &result, const Spread &spread) {
    result["t_us"] = rounded(spread.median);
    result["us"] = to_json(spread);
    result["rounds"] = spread.rounds;
}

void add_goal(Json &result, double goal_us) {
    result["goal_us"] = goal_us;
    result["met"] = result.at("t_us") < goal_us;
}

void add_comparison(Json &result, const char *of, const Spread &ours, const Spread &others) {
    result["of"] = of;
    result["t_plain_us"] = rounded(others.median);
    result["plain_us"] = to_json(others);
    result["ratio"] = rounded(ours.median / others.median);
}

void add_ratio_goal(Json &result, double goal_ratio) {
    result["goal_ratio"] = goal_ratio;
    result["met"] = result.at("ratio") <= goal_ratio;
}

bool is_disturbed(const Json &row) {
    return row.value("others_busy", 0.0) > fair_share_of_others;
}

void replace_file(const std::string &path, const std::string &text) {
    const std::string part = path + ".part";
    std::ofstream stream(part);
    stream << text;
    stream.close();
    if (!stream || std::rename(part.c_str(), path.c_str()) != 0) {
        throw std::runtime_error("the file '" + path + "' cannot be written: " + std::strerror(errno));
    }
}

Json read_results(const std::string &path) {
    std::ifstream stream(path);
    if (!stream) {
        throw std::runtime_error("the results '" + path + "' cannot be opened: " + std::strerror(errno));
    }
    try {
        Json file = Json::parse(stream);
        check_file(file);
        return file;
    } catch (const std::exception &error) {
        throw std::runtime_error("the results '" + path + "' cannot be read: " + error.what());
    }
}

Results::Results(const std::string &path, bool resume, Json header) : path_(path) {
    // A missing file is no error: there is nothing to resume.
    if (resume && std::ifstream(path)) {
        file_ = read_results(path);
        // Rows that share a file come from the same program and settings; only the time may differ.
        for (const auto &[field, value] : header.items()) {
            const Json had = file_["header"].value(field, Json());
            if (had != value && field != "date" && field != "others_busy_before") {
                throw std::runtime_error(fmt::format("the results '{}' cannot be resumed: their '{}' is {}, now it is "
                                                     "{}; give another file with --out",
                                                     path, field, had.dump(), value.dump()));
            }
        }
        return;
    }
    file_ = {{"distile_bench", 1}, {"header", std::move(header)}, {"rows", Json::array()}};
    write();
}

bool Results::is_measured(const std::string &row, const std::string &version) const {
    const auto found = find_row(file_, row);
    return found != file_.at("rows").end() && found->at("status") == "measured" &&
           found->value("version", "") == version;
}

void Results::add(Json row) {
    Json &rows = file_.at("rows");
    const auto found = find_row(file_, row.at("row"));
    const auto index = static_cast<size_t>(found - std::as_const(rows).begin());
    if (index < rows.size()) {
        rows[index] = std::move(row);
    } else {
        rows.push_back(std::move(row));
    }
    write();
}

void Results::write() const {
    if (path_.empty()) {
        return;
    }
    replace_file(path_, format_rows(file_));
}

}  // namespace distile::bench
