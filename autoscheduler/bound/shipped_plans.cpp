#include "autoscheduler/bound/shipped_plans.h"
#include "autoscheduler/bound/buildable.h"
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace distile {

namespace {

namespace fs = std::filesystem;

/** The plan files of a folder, by name. */
std::vector<std::string> files_of(const std::string &folder) {
    std::vector<std::string> files;
    std::error_code error;
    for (const fs::directory_entry &entry : fs::directory_iterator(folder, error)) {
        if (entry.path().extension() == ".json") {
            files.push_back(entry.path().string());
        }
    }
    std::sort(files.begin(), files.end());
    return files;
}

/** Whether a file may be a plan for a target. This spares most files the parser, which takes longer. */
bool names_target(const std::string &path, const std::string &target) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str().find('"' + target + '"') != std::string::npos;
}

/** The parameters by which schedules differ. */
std::map<std::string, std::string> shape_of(const Operator &op) {
    std::map<std::string, std::string> params = op.params;
    params.erase("epilogue");
    params.erase("residual");
    return params;
}

/** Whether the time of code depends on how many weights are 0. */
bool depends_on_zeros(Language language) {
    return language == Language::Nonzeros || language == Language::Bitmap;
}

bool has_same_schedules(const Operator &a, const Operator &b, const CodeChoice &code) {
    const Language language = language_of(b, code);
    const bool same_weights = a.typical_zeros == b.typical_zeros || !depends_on_zeros(language);
    // Code for a pattern takes no other weights.
    const bool same_pattern = a.typical_pattern == b.typical_pattern ||
                              (a.typical_pattern == WeightPattern::None && language != Language::TwoFour);
    return a.generator == b.generator && shape_of(a) == shape_of(b) && same_weights && same_pattern;
}

}  // namespace

std::optional<ChosenPlan> shipped_plan(const std::string &folder, const Operator &op, const PlannedCode &planned) {
    std::optional<ChosenPlan> found;
    for (const std::string &path : files_of(folder)) {
        if (!names_target(path, planned.code.target)) {
            continue;
        }
        try {
            Plan plan = read_plan(path);
            const bool own = plan.op.params == op.params;
            if (plan.target != planned.code.target || plan.math != planned.code.math ||
                !has_same_schedules(plan.op, op, planned.code) || (found && !own)) {
                continue;
            }
            plan.op = op;
            plan.name = planned.name;
            check_buildable(plan);
            found = ChosenPlan{std::move(plan), path};
            if (own) {
                break;
            }
        } catch (const FileError &) {
            // It is of another version, or not for this operator: the bound makes one.
            continue;
        }
    }
    return found;
}

std::vector<ChosenPlan> shipped_or_bound_plans(const std::string &folder, const Operator &op, const Backend &backend,
                                               bool tensor_cores, const Platform &platform) {
    std::vector<ChosenPlan> plans;
    for (const PlannedCode &planned : planned_codes(op, backend, tensor_cores, platform)) {
        std::optional<ChosenPlan> shipped = shipped_plan(folder, op, planned);
        plans.push_back(shipped ? std::move(*shipped)
                                : ChosenPlan{bound_plan(planned.name, op, planned.device, planned.code), ""});
    }
    return plans;
}

}  // namespace distile
