#include "autoscheduler/bound/bound_backend.h"
#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/bound/buildable.h"
#include "autoscheduler/bound/candidates.h"
#include "autoscheduler/bound/code_choice.h"
#include "autoscheduler/command/commands.h"
#include "autoscheduler/command/info.h"
#include "plans/dot_product.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fmt/core.h>
#include <memory>
#include <nlohmann/json.hpp>

namespace distile {

namespace info_command {
namespace {

struct Options {
    std::string file;
    bool json = false;
};

struct SpaceSize {
    std::string name;
    int64_t legal = 0;
    double all = 0;
};

/** The sizes of the spaces of an operator: of CPUs by their vectors, and of GPUs. */
std::vector<SpaceSize> space_sizes(const Operator &op) {
    std::vector<SpaceSize> sizes;
    for (const BoundBackend *backend : bound_backends()) {
        for (const KnownSpace &known : backend->spaces) {
            const bool fits =
                known.dot_products ? multiplies(*known.dot_products, op) : known.tensor_cores || !op.is_quantized();
            if (!fits || (known.tensor_cores && !why_not_on_tensor_cores(op, *known.tensor_cores).empty())) {
                continue;
            }
            Problem problem = problem_of(op, backend->backend.name, known.lanes, known.registers);
            problem.tensor_cores = known.tensor_cores;
            problem.dot_products = known.dot_products;
            const Space &space = backend->space(problem);
            SpaceSize size{known.name, 0, all_points(space)};
            for_each_legal(space, problem, [&](const PackedTheta &) { size.legal++; });
            sizes.push_back(size);
        }
    }
    if (std::all_of(sizes.begin(), sizes.end(), [](const SpaceSize &size) { return size.legal == 0; })) {
        // The error that says why.
        portable_plan(op);
    }
    return sizes;
}

void print_operator(const Operator &op, bool json) {
    const std::vector<SpaceSize> sizes = space_sizes(op);
    if (json) {
        nlohmann::json spaces = nlohmann::json::array();
        for (const SpaceSize &size : sizes) {
            spaces.push_back({{"space", size.name}, {"legal", size.legal}, {"all", size.all}});
        }
        nlohmann::json result = to_json(op);
        result["summary"] = op.summary();
        result["spaces"] = spaces;
        std::fputs(format_json(result).c_str(), stdout);
        return;
    }
    std::string text =
        fmt::format("Operator {}: {}\nTypical output: {} x {} x {} pixels\n{}{}\nSchedules\n", op.name, op.summary(),
                    op.typical_batch, op.typical_output().height, op.typical_output().width,
                    op.typical_zeros > 0 ? fmt::format("Zeros: {:.0f} % of the {}\n", 100 * op.typical_zeros,
                                                       op.is_quantized() ? "quads of weights" : "weights")
                                         : "",
                    op.typical_pattern == WeightPattern::TwoFour ? "Pattern of the weights: 2:4\n" : "");
    for (const SpaceSize &size : sizes) {
        text += fmt::format("  {:<14}{:>10} legal of {:.0f}\n", size.name, size.legal, size.all);
    }
    std::fputs(text.c_str(), stdout);
}

void print_plan(const Plan &plan, bool json) {
    if (json) {
        nlohmann::json result = to_json(plan);
        result["summary"] = plan.op.summary();
        result["features"] = plan.features();
        result["plan_hash"] = plan_hash_text(plan);
        std::fputs(format_json(result).c_str(), stdout);
    } else {
        std::fputs(describe_plan(plan).c_str(), stdout);
    }
}

}  // namespace
}  // namespace info_command

void add_info_command(CLI::App &app) {
    using namespace info_command;
    const auto options = std::make_shared<Options>();
    CLI::App *command =
        app.add_subcommand("info", "Explain a plan in words, or an operator and the sizes of its spaces of schedules");
    command->add_option("file", options->file, "Plan or operator file")->required();
    command->add_flag("--json", options->json, "Print JSON");
    command->footer("Examples:\n  distile info data/plans/conv3x3_256_avx2.json\n"
                    "  distile info data/operators/conv3x3_256.json");
    command->callback([options] {
        const nlohmann::json json = read_json(options->file);
        if (json.is_object() && json.contains("distile_operator")) {
            print_operator(read_operator(options->file), options->json);
        } else {
            const Plan plan = read_plan(options->file);
            check_buildable(plan);
            print_plan(plan, options->json);
        }
    });
}

}  // namespace distile
