#include "autoscheduler/bound/bound_backend.h"
#include "autoscheduler/bound/shipped_plans.h"
#include "autoscheduler/command/commands.h"
#include "autoscheduler/command/hash.h"
#include "autoscheduler/command/list_run.h"
#include "autoscheduler/command/operator_list.h"
#include "autoscheduler/command/plan_search.h"
#include "autoscheduler/compile/tools.h"
#include "autoscheduler/search/weight_file.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

namespace distile {

namespace plan_command {
namespace {

/** Schedules to measure: few enough for a minute of two cores, most of it for compiling. */
constexpr size_t masked_trials = 24, dense_trials = 8;
constexpr int members = 4;

struct PlanOptions {
    std::string op, dtype, folder = ".", device, platform = host_platform().name(), log, weights;
    std::vector<std::string> backends = {cpu_backend().name}, masks, held_out;
    Math math = Math::Float32;
    int threads = 0;
    double seconds = 55;
    bool bound_only = false, unmeasured = false, again = false, json = false, quiet = false;
    ListRunOptions all;
    std::function<std::string()> label; /**< What progress begins with; null: nothing. */
};

struct WrittenPlan {
    std::string path, how, doubt;
    /** What PlanSearch::costs() says; empty for plans that were not measured. */
    nlohmann::json costs = nlohmann::json::object();

    std::string in_words() const {
        return costs.empty() ? how : how + ", " + costs_in_words(costs);
    }
};

/** Whether the tensor cores of a device run better code than a plan's for tensor cores. */
bool has_better_code(const Operator &op, const DeviceProfile &device, const CodeChoice &code) {
    return bound_backend(device.backend).tensor_core_targets(device.features).empty() ||
           choose_code(op, device, "", code.math).target != code.target;
}

/** The search for a plan on this machine; null if it cannot measure code for devices like that of the plan. `how` says
 * how the plan is made. Throws FileError for options that cannot be used. */
std::unique_ptr<PlanSearch> make_search(const PlanOptions &options, const Operator &op, const Backend &backend,
                                        const PlannedCode &planned, const std::string &path, std::string &how) {
    const bool is_of_backend = !options.device.empty() && device_of_option(options.device).backend == backend.name;
    if (options.bound_only) {
        how = "by the bound, as asked";
        return nullptr;
    }
    if (options.unmeasured) {
        how = "by the bound: none that ships is for it, and nothing is measured";
        return nullptr;
    }
    if (!is_of_backend && &backend != &cpu_backend()) {
        how = std::string("by the bound: --device names no profile for ") + backend.display_name;
        return nullptr;
    }
    if (language_of(op, planned.code) == Language::TensorCore &&
        has_better_code(op, device_of_option(options.device), planned.code)) {
        how = "by the bound: it is for the tensor cores of other GPUs than --device";
        return nullptr;
    }
    PlanSearchOptions search;
    search.op = options.op;
    search.dtype = options.dtype;
    search.label = options.label;
    search.one_of_list = !options.all.list.empty();
    // A CPU has one level, which the search finds out; a GPU runs the code of many.
    search.target = &backend == &cpu_backend() ? "" : planned.code.target;
    search.math = planned.code.math;
    search.backend = backend.name;
    search.device = is_of_backend ? options.device : "";
    search.masks = options.masks;
    search.held_out = options.held_out;
    search.weights = options.weights;
    search.threads = options.threads;
    search.timing_seconds = .5;
    search.compile_limit_s = 20;
    search.no_model = true;
    search.search.k = members;
    search.search.counts = 0;
    search.plan = path;
    search.log = options.log;
    search.again = options.again;
    search.only_included = true;
    search.quiet = options.quiet;
    auto made = std::make_unique<PlanSearch>(search);
    const std::string &target = made->session().code.target;
    if (target != planned.code.target) {
        how = "by the bound: this machine runs " + level_of(target);
        return nullptr;
    }
    try {
        made->check_machine();
    } catch (const std::exception &error) {
        how = std::string("by the bound: ") + error.what();
        return nullptr;
    }
    how = "measured on this machine";
    return made;
}

/** Measures the schedules that the bound ranks best, and writes the plan of the best of them. */
void measure_plan(PlanSearch &search, double seconds) {
    search.include(best_by_bound(search.session().workload, {.3, .1, .03, .6}, masked_trials), false);
    search.include(best_by_bound(search.session().workload, {1}, dense_trials), true);
    search.open_log();
    search.finish(search.search(seconds), seconds);
    if (!search.has_plan()) {
        throw FileError(search.complaint());
    }
    add_code_for_all_weights(search);
}

void make_folder(const std::string &folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
        throw FileError("the folder '" + folder + "' cannot be made: " + error.message());
    }
}

std::string describe(const std::vector<WrittenPlan> &plans, const std::string &name, const std::string &op) {
    std::string text, paths;
    for (const WrittenPlan &plan : plans) {
        text += fmt::format("{}: {}\n", plan.path, plan.in_words());
        paths += " " + plan.path;
    }
    return text + fmt::format("\nBuild with them: distile_add_polykernel({} OPERATOR {} PLAN{})\n", name, op, paths);
}

/** Makes the plans of an operator for a backend. */
std::vector<WrittenPlan> make_plans(const PlanOptions &options, const Operator &op, const Backend &backend) {
    std::vector<WrittenPlan> plans;
    std::vector<std::pair<std::string, Plan>> unmeasured;
    const bool tensor_cores = op.dtype().dtype != DISTILE_FLOAT32 || options.math == Math::TF32;
    for (const PlannedCode &planned : planned_codes(op, backend, tensor_cores, get_platform(options.platform))) {
        const std::string path = (std::filesystem::path(options.folder) / (planned.name + ".json")).string();
        std::string how;
        const std::unique_ptr<PlanSearch> search = make_search(options, op, backend, planned, path, how);
        make_folder(options.folder);
        std::optional<ChosenPlan> shipped;
        if (!options.bound_only) {
            shipped = shipped_plan(folder_of_shipped_plans(), op, planned);
        }
        if (search) {
            if (shipped) {
                search->include(shipped->plan);
            }
            measure_plan(*search, options.seconds);
        } else if (shipped) {
            how = "as " + shipped->shipped + ", which ships";
            unmeasured.emplace_back(path, std::move(shipped->plan));
        } else {
            unmeasured.emplace_back(path, bound_plan(planned.name, op, planned.device, planned.code));
        }
        plans.push_back({path, how, "", nlohmann::json::object()});
        if (search) {
            plans.back().doubt = search->doubt();
            plans.back().costs = search->costs();
        }
    }
    // Last, so that a measurement that fails leaves none.
    for (const auto &[path, plan] : unmeasured) {
        write_file(path, format_json(to_json(plan)));
    }
    return plans;
}

nlohmann::json to_json(const std::vector<WrittenPlan> &plans, const std::string &backend) {
    nlohmann::json rows = nlohmann::json::array();
    for (const WrittenPlan &plan : plans) {
        rows.push_back({{"plan", plan.path}, {"backend", backend}, {"how", plan.how}});
        rows.back().update(plan.costs);
        if (!plan.doubt.empty()) {
            rows.back()["doubt"] = plan.doubt;
        }
    }
    return rows;
}

void make_plans(const PlanOptions &options) {
    const Operator op = read_operator(options.op, options.weights, options.dtype);
    for (const std::string &name : options.backends) {
        check_weights_for(name, options.weights);
    }
    // A write beyond a limit is an error with a message, and no signal.
    std::signal(SIGXFSZ, SIG_IGN);
    const Interrupts interrupts;
    nlohmann::json written = nlohmann::json::array();
    for (const std::string &name : options.backends) {
        const std::vector<WrittenPlan> plans = make_plans(options, op, get_backend(name));
        const nlohmann::json rows = to_json(plans, name);
        written.insert(written.end(), rows.begin(), rows.end());
        if (!options.json && !options.quiet) {
            std::fputs(describe(plans, op.name, options.op).c_str(), stdout);
        }
    }
    if (options.json) {
        std::fputs(format_json({{"distile_plans", 1}, {"operator", op.name}, {"plans", written}}).c_str(), stdout);
    }
}

/** An operator of a list, for a backend. */
struct ListedPlans {
    PlanOptions options;
    Operator op;
    const Backend *backend;
    ListTask task;
};

/** How much measuring may gain; 0 where nothing is measured. */
int gain_of(const PlanOptions &options, const ListedOperator &listed, const Backend &backend) {
    SessionOptions session;
    session.device = options.device;
    session.backend = backend.name;
    if (options.bound_only || options.unmeasured) {
        return 0;
    }
    try {
        const DeviceProfile device = find_device(session);
        const CodeChoice code = choose_code(listed.op, device, "", listed.math);
        return expected_gain(listed, plan_to_make(listed.op, device, code).shipped, device);
    } catch (const FileError &) {
        return 0;
    }
}

ListedPlans listed_plans(const PlanOptions &options, const ListedOperator &listed, const Backend &backend) {
    ListedPlans plans{options, listed.op, &backend, {}};
    plans.options.op = listed.file;
    plans.options.dtype = listed.op.dtype().name;
    plans.options.math = listed.math;
    // One operator has the names of its files behind it, and several backends.
    plans.task.name = listed.op.name + (listed.math == Math::TF32 ? "_tf32" : "") +
                      (&backend == &cpu_backend() ? "" : std::string("_") + backend.name);
    plans.task.about = {{"operator", listed.file}, {"type", plans.options.dtype}};
    plans.task.version = hash_text(to_json(listed.op).dump());
    plans.task.gain = gain_of(options, listed, backend);
    const bool tensor_cores = listed.op.dtype().dtype != DISTILE_FLOAT32 || listed.math == Math::TF32;
    for (const PlannedCode &planned : planned_codes(listed.op, backend, tensor_cores, get_platform(options.platform))) {
        const std::string path = (std::filesystem::path(options.folder) / planned.name).string();
        plans.task.logs.push_back(path + ".log");
        plans.task.made.push_back(path + ".json");
    }
    return plans;
}

TaskOutcome make_listed(const ListedPlans &plans, double seconds, const std::function<std::string()> &label) {
    PlanOptions options = plans.options;
    options.label = label;
    options.seconds = seconds > 0 ? std::min(seconds, options.seconds) : options.seconds;
    const std::vector<WrittenPlan> written = make_plans(options, plans.op, *plans.backend);
    nlohmann::json found = {{"plans", to_json(written, plans.backend->name)}};
    std::string why;
    for (const WrittenPlan &plan : written) {
        found.update(plan.costs);
        why += (why.empty() ? "" : "; ") + std::filesystem::path(plan.path).stem().string() + " " + plan.in_words();
        if (!plan.doubt.empty()) {
            found["doubt"] = plan.doubt;
        }
    }
    return {TaskState::Done, why, found};
}

void plan_all(const PlanOptions &options) {
    std::vector<ListedPlans> all;
    for (const std::string &name : options.backends) {
        for (const ListedOperator &listed : read_operator_list(options.all.list, name)) {
            all.push_back(listed_plans(options, listed, get_backend(name)));
        }
    }
    // A write beyond a limit is an error with a message, and no signal.
    std::signal(SIGXFSZ, SIG_IGN);
    SessionOptions session;
    session.device = options.device;
    const nlohmann::json settings = {{"command", "plan"},
                                     {"device", options.device.empty() ? find_device(session).id() : options.device},
                                     {"threads", options.threads},
                                     {"masks", options.masks},
                                     {"held_out", options.held_out},
                                     {"seconds", options.seconds},
                                     {"bound_only", options.bound_only},
                                     {"unmeasured", options.unmeasured},
                                     {"platform", options.platform}};
    std::vector<ListTask> tasks;
    tasks.reserve(all.size());
    for (const ListedPlans &plans : all) {
        tasks.push_back(plans.task);
    }
    ListRunOptions run_options = options.all;
    run_options.shares_out = true;
    run_options.again = options.again;
    run_options.json = options.json;
    run_options.quiet = options.quiet;
    ListRun run(run_options, (std::filesystem::path(options.folder) / "plan.json").string(), settings,
                std::move(tasks));
    const Interrupts interrupts;
    run.run([&](size_t task, double seconds, const std::function<std::string()> &label) {
        const std::string &name = run.tasks()[task].name;
        return make_listed(
            *std::find_if(all.begin(), all.end(), [&](const ListedPlans &plans) { return plans.task.name == name; }),
            seconds, label);
    });
}

}  // namespace
}  // namespace plan_command

void add_plan_command(CLI::App &app) {
    using namespace plan_command;
    const auto options = std::make_shared<PlanOptions>();
    CLI::App *command = app.add_subcommand(
        "plan",
        "Write good plans for an operator within a minute: the bound's best schedules, measured on this machine");
    CLI::Option *op = command->add_option("operator", options->op, "Operator file")->required();
    add_dtype_option(*command, options->dtype);
    add_list_options(*command, options->all,
                     "Make plans of all operators of a list, as data/tuning.json, or of a table, as data/operators.csv",
                     op);
    command->add_option("-o,--out", options->folder, "Folder for the plans NAME_avx512.json, NAME_avx2.json, ...")
        ->capture_default_str();
    command->add_option("--backend", options->backends, "Backends")
        ->capture_default_str()
        ->check(CLI::IsMember(backend_names()));
    CLI::Option *bound_only =
        command->add_flag("--bound-only", options->bound_only, "Measure nothing, and take no plan that ships");
    command
        ->add_flag("--unmeasured", options->unmeasured,
                   "Measure nothing: take the plans that ship, for this shape with any activation, or the bound's")
        ->excludes(bound_only);
    command->add_option("--device", options->device,
                        std::string(device_option_help) + " (default: a generic profile of this machine's CPU)");
    add_platform_option(*command, options->platform);
    add_math_option(*command, options->math);
    command->add_option("--masks", options->masks,
                        std::string(mask_option_help) + " (default: suite:train, and suite:held-out to judge by)");
    add_held_out_option(*command, options->held_out);
    command->add_option("--weights", options->weights, weights_option_help);
    command->add_option("--threads", options->threads, "Threads of a call (default: one per core)")
        ->check(CLI::Range(1, 4096));
    command->add_option("--seconds", options->seconds, "Seconds after which measuring a plan ends")
        ->capture_default_str()
        ->check(CLI::Range(0.1, 1e6));
    command->add_option("--log", options->log, "Where measurements are kept (default: beside the plan)")->needs(op);
    command->add_flag("--again", options->again, again_option_help);
    command->add_flag("--json", options->json, "Print what was written as JSON");
    command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors and warnings");
    command->footer(
        "Plans for other CPUs than this one, or for less than it has, are those that ship for the same shape with any "
        "activation,\nor made by the bound alone. `distile tune` finds better plans in more time.\n"
        "Measurements are kept beside the plans: the same command continues after an interruption.\n"
        "With --all, plan.json in the folder says what became of each operator. The same command skips what is done.\n"
        "Examples:\n"
        "  distile plan my_operator.json                       # my_operator_avx512.json, my_operator_avx2.json\n"
        "  distile plan my_bfloat16_operator.json              # before these, ..._amx_bf16.json, "
        "..._avx512_bf16.json\n"
        "  distile plan my_operator.json -o plans --masks my_masks.npy\n"
        "  distile plan --all data/tuning.json -o plans --hours 0.5\n"
        "  distile plan my_operator.json --weights my_pruned_weights.npy\n"
        "  distile plan my_operator.json --bound-only --backend cpu cuda\n"
        "  distile plan my_operator.json --platform arm-64-linux # my_operator_armv82.json\n"
        "  distile plan my_operator.json --backend cuda --device my_gpu.json --math tf32   # "
        "my_operator_tf32_sm90.json, "
        "...");
    command->callback([options, op] {
        require_one_or_list(options->all, *op);
        take_suite(options->masks, options->held_out);
        if (options->all.list.empty()) {
            make_plans(*options);
        } else {
            plan_all(*options);
        }
    });
}

}  // namespace distile
