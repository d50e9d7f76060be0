#include "bench/harness/own_objects.h"
#include <algorithm>
#include <filesystem>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace distile::bench {

namespace {

namespace fs = std::filesystem;

/** FNV-1a. */
uint64_t hash_of(const std::string &text) {
    uint64_t hash = 0xcbf29ce484222325;
    for (const char c : text) {
        hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
    }
    return hash;
}

/** The shared objects of a folder, by name. */
std::vector<fs::path> objects_of(const std::string &folder) {
    std::vector<fs::path> paths;
    try {
        for (const fs::directory_entry &entry : fs::directory_iterator(folder)) {
            if (entry.path().extension() == ".so") {
                paths.push_back(entry.path());
            }
        }
    } catch (const fs::filesystem_error &error) {
        throw FileError("the folder '" + folder + "' cannot be read: " + error.code().message() +
                        "; give one that bench/own/run.sh or bench/gpu/pack.sh made");
    }
    if (paths.empty()) {
        throw FileError("the folder '" + folder + "' holds no OPERATOR.WAY.so; `distile compile` makes one");
    }
    std::sort(paths.begin(), paths.end());
    return paths;
}

/** What a plan is of besides its operator: its typical size. */
bool is_same_problem(const Operator &a, const Operator &b) {
    return a == b && a.typical_input() == b.typical_input();
}

}  // namespace

OwnObjects::OwnObjects(const std::string &folder, const Backend &backend) {
    for (const fs::path &path : objects_of(folder)) {
        const std::string stem = path.stem().string(), op = stem.substr(0, stem.find('.'));
        const std::string way = stem.substr(std::min(stem.size(), op.size() + 1));
        if (!is_name(op) || !is_name(way)) {
            throw FileError("the shared object '" + path.string() + "' is not named OPERATOR.WAY.so");
        }
        const std::string base = (path.parent_path() / stem).string();
        Plan plan = read_plan(base + ".json");
        if (plan.op.name != op || plan.backend != backend.name) {
            throw FileError(
                fmt::format("the plan '{}.json' is of the operator '{}' on the backend \"{}\", but its name "
                            "says '{}', and this program measures \"{}\"",
                            base, plan.op.name, plan.backend, op, backend.name));
        }
        std::vector<OwnKernel> &kernels = kernels_[op];
        if (!kernels.empty() && !is_same_problem(kernels.front().plan.op, plan.op)) {
            const Operator &other = kernels.front().plan.op;
            throw FileError(fmt::format("the plan '{}.json' is of another operator ({}, {}) than that of '{}' ({}, {})",
                                        base, plan.op.summary(), plan.op.typical_input(), kernels.front().way,
                                        other.summary(), other.typical_input()));
        }
        SharedObject object(plan, path.string());
        OwnKernel kernel{way, std::move(plan), std::move(object), "", {}};
        if (!kernel.plan.times.empty()) {
            kernel.times = times_.path() + "/" + stem + ".json";
            write_file(kernel.times, format_json(time_table_of(kernel.plan)));
        }
        if (const std::string seconds = base + ".seconds.json"; fs::exists(seconds)) {
            try {
                kernel.seconds = read_json(seconds).get<std::map<std::string, double>>();
            } catch (const nlohmann::json::exception &error) {
                throw FileError("the file '" + seconds + "' does not hold seconds by step: " + error.what());
            }
        }
        kernels.push_back(std::move(kernel));
    }
}

std::vector<OwnOperator> OwnObjects::operators() const {
    std::vector<OwnOperator> operators;
    for (const auto &[name, kernels] : kernels_) {
        const distile_border border = kernels.front().plan.op.border();
        OwnOperator op{name, {}, border.top + border.bottom + border.left + border.right > 0, ""};
        for (const OwnKernel &kernel : kernels) {
            op.ways.push_back(kernel.way);
            op.version += fmt::format("{}{}:{:016x}", op.version.empty() ? "" : " ", kernel.way,
                                      hash_of(to_json(kernel.plan).dump()));
        }
        operators.push_back(std::move(op));
    }
    return operators;
}

const OwnKernel *OwnObjects::find(const std::string &name) const {
    const size_t dot = name.find('.');
    const auto op = kernels_.find(name.substr(0, dot));
    if (dot == std::string::npos || op == kernels_.end()) {
        return nullptr;
    }
    for (const OwnKernel &kernel : op->second) {
        if (kernel.way == name.substr(dot + 1)) {
            return &kernel;
        }
    }
    return nullptr;
}

}  // namespace distile::bench
