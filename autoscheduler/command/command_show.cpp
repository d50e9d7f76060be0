#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/buildable.h"
#include "autoscheduler/bound/candidates.h"
#include "autoscheduler/bound/code_choice.h"
#include "autoscheduler/bound/rank.h"
#include "autoscheduler/command/commands.h"
#include "autoscheduler/compile/process.h"
#include "autoscheduler/compile/tools.h"
#include "plans/bitmap.h"
#include "plans/dot_product.h"
#include "plans/nonzeros.h"
#include "plans/plan.h"
#include "plans/tensor_core.h"
#include "plans/two_four.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fmt/core.h>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

namespace distile {

namespace show_command {
namespace {

struct Options {
    std::string file, variant, theta, device;
    double density = .3;
    bool json = false;
};

/** A theta as JSON, or as KNOB=VALUE,KNOB=VALUE. */
Theta theta_of_option(const std::string &text) {
    std::string object = text;
    if (text.find('{') == std::string::npos) {
        std::istringstream words(text);
        object.clear();
        for (std::string word; std::getline(words >> std::ws, word, ',');) {
            const size_t equals = word.find('=');
            if (equals == std::string::npos) {
                throw FileError("--schedule has '" + word + "', which is not KNOB=VALUE");
            }
            object += object.empty() ? "{\"" : ", \"";
            object += word.substr(0, equals) + "\": " + word.substr(equals + 1);
        }
        object += "}";
    }
    return parse_theta(parse_json(object, "--schedule, as JSON " + object + ","), "--schedule");
}

/** The schedule as the plugin writes it when it applies a variant. */
std::string schedule_source(const Plan &plan, const PlanVariant &variant) {
    const TemporaryFolder folder;
    const std::string plan_path = folder.path() + "/plan.json";
    write_file(plan_path, to_json(plan).dump());
    run_generators({generator_command(plan, variant, plan_path, "schedule", folder.path(), plan.op.name)}, 1,
                   [](int) {});
    std::ifstream stream(folder.path() + "/" + plan.op.name + ".schedule.h");
    std::ostringstream text;
    text << stream.rdbuf();
    return text.str();
}

/** A plan of one variant, made of an operator file and a theta, which may be one for the device's dot products. */
Plan plan_of_theta(const Operator &op, const Theta &theta, const DeviceProfile &device) {
    CodeChoice code{target_for(op, device), Math::Float32};
    const std::vector<Knob> &knobs = space_of(device.backend, workload_of(op, device, code).problem).knobs;
    if (std::any_of(knobs.begin(), knobs.end(), [&](const Knob &knob) { return theta.count(knob.name) == 0; })) {
        code.target = halide_target(device);
    }
    Plan plan = make_plan(op.name, op, get_backend(device.backend), code);
    add_variant(plan, "shown", theta, false);
    return plan;
}

/** The backend that has the most of a theta's knobs. */
const Backend &backend_of_theta(const Operator &op, const Theta &theta) {
    const auto shared_knobs = [&](const Backend *backend) {
        const std::vector<Knob> &knobs = space_of(backend->name, problem_of(op, backend->name, 1, 0)).knobs;
        return std::count_if(knobs.begin(), knobs.end(), [&](const Knob &knob) { return theta.count(knob.name) != 0; });
    };
    return **std::max_element(backends().begin(), backends().end(),
                              [&](const Backend *a, const Backend *b) { return shared_knobs(a) < shared_knobs(b); });
}

void show(const Options &options) {
    const nlohmann::json file = read_json(options.file);
    Plan plan;
    DeviceProfile device;
    if (file.is_object() && file.contains("distile_operator")) {
        if (options.theta.empty()) {
            throw FileError("'" + options.file + "' is an operator file: name a schedule with --schedule");
        }
        const Theta theta = theta_of_option(options.theta);
        const Operator op = read_operator(options.file);
        device = device_of_option(options.device.empty() ? backend_of_theta(op, theta).usual_profile : options.device);
        plan = plan_of_theta(op, theta, device);
    } else {
        if (!options.theta.empty()) {
            throw FileError("'" + options.file +
                            "' is a plan file, which has schedules of its own: --schedule goes with an operator file");
        }
        plan = read_plan(options.file, Times::Drop);
        device = device_of_option(options.device.empty() ? generic_device_of(plan.target) : options.device);
    }
    if (device.backend != plan.backend) {
        throw FileError("the device profile is for the backend \"" + device.backend + "\", but the schedule for \"" +
                        plan.backend + "\"");
    }
    const PlanVariant *variant = options.variant.empty() ? &plan.variants.front() : plan.find(options.variant);
    if (!variant) {
        throw FileError("the plan '" + plan.name + "' has no variant '" + options.variant + "'");
    }
    const bool on_tensor_cores = variant->language == Language::TensorCore;
    if (variant->language != Language::Halide) {
        check_buildable(plan, *variant);
    }
    const bool skips = variant->language == Language::Nonzeros, on_bitmap = variant->language == Language::Bitmap,
               keeps_two = variant->language == Language::TwoFour;
    const Workload workload = workload_of(skips || on_bitmap || keeps_two ? plan.op : with_all_weights(plan.op), device,
                                          {plan.target, plan.math});
    const Space &space = space_of(plan.backend, workload.problem);
    const std::string illegal = space.why_illegal(variant->theta, workload.problem);
    if (!illegal.empty()) {
        throw FileError("the schedule is not legal for this operator and device: " + illegal);
    }
    const double density = variant->dense ? 1 : options.density;
    const int64_t tiles = density_bucket(workload, density).tiles(variant->tile_h(), variant->tile_w());
    const Bound of = bound(workload, variant->theta, tiles);
    // Other code than Halide's has no schedule: what is compiled is all.
    Plan only = plan;
    only.variants = {*variant};
    const bool from_halide = variant->language == Language::Halide;
    const std::string source = from_halide       ? schedule_source(plan, *variant)
                               : on_tensor_cores ? tensor_core_source(only)
                               : skips           ? call_of_nonzeros(only)
                               : on_bitmap       ? call_of_bitmap(only)
                               : keeps_two       ? call_of_two_four(only)
                                                 : call_of_dot_products(only);
    if (options.json) {
        const nlohmann::json result = {{"operator", plan.op.name}, {"device", device.id()},
                                       {"theta", variant->theta},  {"density", density},
                                       {"tiles", tiles},           {"bound_us", of.us},
                                       {"terms", of.terms},        {from_halide ? "schedule" : "source", source}};
        std::fputs(format_json(result).c_str(), stdout);
        return;
    }
    std::string text = fmt::format("{}\n\n{}\nThe bound on {}\nat a density of {}, {} tiles: {:.1f} us\n",
                                   space.describe(variant->theta), source, device.id(), density, tiles, of.us);
    for (const auto &[name, value] : of.terms) {
        text += fmt::format("  {:<20}{:>16.6g}\n", name, value);
    }
    std::fputs(text.c_str(), stdout);
}

}  // namespace
}  // namespace show_command

void add_show_command(CLI::App &app) {
    using namespace show_command;
    const auto options = std::make_shared<Options>();
    CLI::App *command = app.add_subcommand("show", "Show a schedule as C++, and the terms of its bound");
    command->add_option("file", options->file, "Plan or operator file")->required();
    CLI::Option *variant =
        command->add_option("--variant", options->variant, "Variant of the plan (default: the first)");
    command
        ->add_option("--schedule", options->theta, "Schedule of the operator: KNOB=VALUE,... for every knob, or JSON")
        ->excludes(variant);
    command->add_option("--device", options->device, std::string(device_option_help) + " (default: a generic one)");
    command->add_option("--density", options->density, "Part of the pixels that are active, for the bound")
        ->capture_default_str()
        ->check(CLI::Range(1e-6, 1.0));
    command->add_flag("--json", options->json, "Print JSON");
    command->footer("Examples:\n  distile show data/plans/conv3x3_256_avx2.json --variant dense\n"
                    "  distile show data/operators/conv3x3_256.json --schedule tile_h=1,tile_w=1,pixels=6,channels=16,"
                    "group=8,channel_splits=1,order=0,unroll=4");
    command->callback([options] { show(*options); });
}

}  // namespace distile
