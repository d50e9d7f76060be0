#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/command/commands.h"
#include "autoscheduler/command/info.h"
#include "autoscheduler/command/list_run.h"
#include "autoscheduler/command/search_session.h"
#include "autoscheduler/compile/compile.h"
#include "autoscheduler/compile/process.h"
#include "autoscheduler/compile/tools.h"
#include "autoscheduler/measure/measure_backend.h"
#include "autoscheduler/measure/orders.h"
#include "autoscheduler/search/weight_file.h"
#include "plans/emit.h"
#include "reference/processor.h"
#include "runtime/cpu/cpu_features.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

namespace distile {

namespace profile_command {
namespace {

struct Options {
    std::vector<std::string> plans;
    std::string object; /**< A shared object, or a folder with one for each plan; "": compiles. */
    std::string out, cpu_features, weights;
    bool into_plan = false, replace = false, json = false, quiet = false, limit_cpu = false, one_of_list = false,
         orders = false;
    double seconds_per_variant = ProfileOptions().seconds_per_variant;
    std::map<const Backend *, std::vector<int>> workers; /**< Numbers of them to measure with. */
    ListRunOptions all;                                  /**< Its list is a folder of plans. */
    std::string label;                                   /**< What progress begins with. */
};

struct CompileOptions {
    std::string plan, out;
    bool quiet = false;
    ListRunOptions all; /**< Its list is a folder of plans. */
};

/** What compiling reports to. */
std::function<void(int)> count_variants(ProgressLine &line, const Plan &plan, const std::string &label = "") {
    return [&line, &plan, label](int done) {
        line.show(label + "compiling", static_cast<double>(done) / static_cast<double>(plan.variants.size()));
    };
}

void compile(const CompileOptions &options) {
    const Plan plan = read_plan(options.plan, Times::Drop);
    try {
        ProgressLine line(options.quiet);
        compile_plan(plan, options.out, cores_of_machine(), count_variants(line, plan));
    } catch (const GeneratorFailed &error) {
        std::fputs(fmt::format("distile: error: {}.\n", printable(error.what())).c_str(), stderr);
        throw CLI::RuntimeError(generator_failed);
    }
    if (!options.quiet) {
        std::fputs(fmt::format("Written to {}\n", options.out).c_str(), stdout);
    }
}

/** A plan and its file; "" for the portable one, which has none. */
struct ChosenPlan {
    Plan plan;
    std::string path;
};

/** The plan that a PolyKernel of several would take on this machine. */
ChosenPlan choose_plan(const Options &options) {
    const char *allowed = options.limit_cpu ? options.cpu_features.c_str() : nullptr;
    if (allowed && !are_cpu_features(allowed)) {
        throw FileError(fmt::format("--cpu-features '{}' names an unknown feature", allowed));
    }
    std::vector<Plan> plans;
    for (const std::string &path : options.plans) {
        plans.push_back(read_plan(path, Times::Drop));
    }
    check_chain(plans);
    // What a GPU lacks, its driver says.
    if (plans.front().backend != cpu_backend().name) {
        return {plans.front(), options.plans.front()};
    }
    std::string lacking;
    for (size_t i = 0; i < plans.size(); i++) {
        const std::string missing = missing_cpu_feature(plans[i].features().c_str(), allowed);
        if (missing.empty()) {
            return {plans[i], options.plans[i]};
        }
        lacking += fmt::format("{}'{}' for '{}'", lacking.empty() ? "" : ", ", missing, options.plans[i]);
    }
    if (options.into_plan || !options.object.empty()) {
        throw FileError("this CPU lacks " + lacking);
    }
    if (!options.quiet) {
        std::fputs(fmt::format("This CPU lacks {}: measuring the portable plan.\n", lacking).c_str(), stderr);
    }
    return {portable_plan(plans.front().op), ""};
}

/** Adds the times that the plan's file has of this device for other numbers of threads. */
void keep_other_times(Plan &plan, const std::string &path) {
    Plan former;
    try {
        former = read_plan(path, Times::Keep);
    } catch (const FileError &) {
        return;  // The plan's times are of other code.
    }
    if (former.profiled_device != plan.profiled_device) {
        return;
    }
    plan.doubt = plan.doubt.empty() ? former.doubt : plan.doubt;
    std::set<int> measured;
    for (const PlanTime &time : plan.times) {
        measured.insert(time.threads);
    }
    std::copy_if(former.times.begin(), former.times.end(), std::back_inserter(plan.times),
                 [&](const PlanTime &time) { return measured.count(time.threads) == 0; });
    std::stable_sort(plan.times.begin(), plan.times.end(),
                     [](const PlanTime &a, const PlanTime &b) { return a.threads < b.threads; });
}

/** The weights of a file, which must have about as many nonzeros as those that the plan is for: the runtime scales its
 * times by that number. */
std::vector<float> weights_for(const Plan &plan, const std::string &path) {
    check_weights_for(plan.backend, path);
    std::vector<float> weights = read_weights(path, plan.op);
    const double zeros = share_of_zeros(plan.op, weights, path), planned = plan.op.typical_zeros;
    if (std::abs(zeros - planned) > .05 * (1 - planned)) {
        throw FileError(fmt::format("{:.1f} % of the weights '{}' are 0, but the plan '{}' is for {:.1f} %: make "
                                    "another with distile plan --weights",
                                    100 * zeros, path, plan.name, 100 * planned));
    }
    return weights;
}

/** Gives the variants of a plan the orders of tiles that suit this machine. */
void find_orders(Plan &plan, const Options &options, ProgressLine &line) {
    if (plan.backend != cpu_backend().name || plan.op.reads_keys()) {
        throw FileError(fmt::format("--orders is for operators on CPUs that read no keys, not for '{}'", plan.name));
    }
    for (PlanVariant &variant : plan.variants) {
        variant.order = DISTILE_TILES_BY_ROWS;
    }
    const SharedObject object(plan, cores_of_machine(), count_variants(line, plan, options.label));
    const std::vector<int> &threads = options.workers.at(&cpu_backend());
    const std::vector<distile_tile_order> orders =
        measure_orders(plan, object, threads.empty() ? cores_of_machine() : threads.back(), options.seconds_per_variant,
                       [&](const std::string &what, double part) { line.show(options.label + what, part); });
    for (size_t i = 0; i < orders.size(); i++) {
        plan.variants[i].order = orders[i];
    }
}

/** Measures a plan, and returns it with its times. */
Plan profile_plan(const Options &options) {
    auto [plan, plan_path] = choose_plan(options);
    const Backend &backend = get_backend(plan.backend);
    for (const auto &[other, numbers] : options.workers) {
        if (other != &backend && !numbers.empty()) {
            throw FileError(fmt::format("the plan '{}' is for {}: give --{}s in place of --{}s", plan.name,
                                        backend.display_name, backend.worker, other->worker));
        }
    }
    const MeasureBackend &measured = measure_backend(plan.backend);
    measured.check("", plan.target);  // Before anything is compiled.
    ProfileOptions profile_options;
    profile_options.threads = options.workers.at(&backend);
    profile_options.seconds_per_variant = options.seconds_per_variant;
    if (!options.weights.empty()) {
        profile_options.weights = weights_for(plan, options.weights);
    }
    {
        ProgressLine line(options.quiet);
        if (options.orders) {
            find_orders(plan, options, line);
        }
        const SharedObject object =
            options.object.empty() ? SharedObject(plan, cores_of_machine(), count_variants(line, plan, options.label))
                                   : SharedObject(plan, options.object);
        Profile profiled = measured.profile(plan, object, profile_options, [&](const std::string &what, double part) {
            line.show(options.label + what, part);
        });
        plan.profiled_device = std::move(profiled.device);
        plan.doubt = std::move(profiled.doubt);
        plan.times = std::move(profiled.times);
    }
    if (!plan.doubt.empty() && !options.one_of_list) {
        warn(fmt::format("the times of '{}' are doubtful; {}; run the same command again when nothing else runs",
                         plan.name, plan.doubt));
    }
    if (options.into_plan && !options.replace) {
        keep_other_times(plan, plan_path);
    }
    const std::string path = options.into_plan     ? plan_path
                             : options.out.empty() ? plan.name + ".times.json"
                                                   : options.out;
    write_file(path, format_json(options.into_plan ? to_json(plan) : time_table_of(plan)));
    if (options.json) {
        std::fputs(format_json(time_table_of(plan)).c_str(), stdout);
    } else if (!options.quiet && !options.one_of_list) {
        std::fputs(describe_plan(plan).c_str(), stdout);
        std::fputs(fmt::format("\nWritten to {}\n", path).c_str(), stdout);
    }
    return plan;
}

/** The plans of a folder, by name: its files that say that they are plans. */
std::vector<std::string> plans_of(const std::string &folder) {
    std::error_code error;
    std::vector<std::string> files;
    for (const auto &file : std::filesystem::directory_iterator(folder, error)) {
        if (file.path().extension() == ".json" && read_json(file.path().string()).contains("distile_plan")) {
            files.push_back(file.path().string());
        }
    }
    if (error) {
        throw FileError("the folder '" + folder + "' cannot be read: " + error.message());
    }
    if (files.empty()) {
        throw FileError("the folder '" + folder + "' has no plans: name one that distile plan or tune wrote");
    }
    std::sort(files.begin(), files.end());
    return files;
}

/** The shared object in a folder that is compiled from a plan. */
std::string object_of(const std::string &folder, const std::string &name) {
    return (std::filesystem::path(folder) / (name + ".so")).string();
}

/** A plan of a folder. */
ListTask listed_plan(const std::string &path, const Plan &plan) {
    ListTask task;
    task.name = std::filesystem::path(path).stem().string();
    task.about = {{"plan", path}, {"backend", plan.backend}};
    task.version = plan_hash_text(plan);
    return task;
}

/** A plan of a folder to measure, and why this machine cannot. */
ListTask listed_profile(const Options &options, const std::string &path) {
    const Plan plan = read_plan(path, Times::Drop);
    ListTask task = listed_plan(path, plan);
    task.version += ", " + plan.op.typical_input();
    task.made = {options.into_plan ? path
                                   : (std::filesystem::path(options.out) / (task.name + ".times.json")).string()};
    try {
        measure_backend(plan.backend).check("", plan.target);
    } catch (const std::exception &error) {
        task.skipped = error.what();
    }
    return task;
}

void profile_all(const Options &options) {
    const std::string out = options.into_plan ? options.all.list : options.out;
    if (out.empty()) {
        throw FileError("--all needs a folder for the time tables: name one with -o, or write them into the plans with "
                        "--into-plan");
    }
    std::vector<ListTask> tasks;
    for (const std::string &path : plans_of(options.all.list)) {
        tasks.push_back(listed_profile(options, path));
    }
    nlohmann::json settings = {{"command", "profile"},
                               {"device", cpu_name()},
                               {"seconds", options.seconds_per_variant},
                               {"into_plan", options.into_plan}};
    for (const auto &[backend, numbers] : options.workers) {
        settings[fmt::format("{}s", backend->worker)] = numbers;
    }
    ListRunOptions run_options = options.all;
    run_options.json = options.json;
    run_options.quiet = options.quiet;
    run_options.again = true;
    run_options.again_option = "";
    ListRun run(run_options, (std::filesystem::path(out) / "profile.json").string(), settings, std::move(tasks));
    const Interrupts interrupts;
    run.run([&](size_t task, double, const std::function<std::string()> &label) -> TaskOutcome {
        Options one = options;
        one.plans = {run.tasks()[task].about.at("plan").get<std::string>()};
        one.object = options.object.empty() ? "" : object_of(options.object, run.tasks()[task].name);
        one.out = options.into_plan ? "" : run.tasks()[task].made.front();
        one.json = false;
        one.one_of_list = true;
        one.label = label();
        const Backend &backend = get_backend(run.tasks()[task].about.at("backend").get<std::string>());
        for (auto &[other, numbers] : one.workers) {
            if (other != &backend) {
                numbers.clear();
            }
        }
        const Plan plan = profile_plan(one);
        nlohmann::json found = {{"times", plan.times.size()}, {"device", plan.profiled_device}};
        if (!plan.doubt.empty()) {
            found["doubt"] = plan.doubt;
        }
        return {TaskState::Done, fmt::format("{} times", plan.times.size()), std::move(found)};
    });
}

void compile_all(const CompileOptions &options) {
    std::vector<ListTask> tasks;
    for (const std::string &path : plans_of(options.all.list)) {
        tasks.push_back(listed_plan(path, read_plan(path, Times::Drop)));
        tasks.back().made = {object_of(options.out, tasks.back().name)};
    }
    ListRunOptions run_options = options.all;
    run_options.quiet = options.quiet;
    ListRun run(run_options, (std::filesystem::path(options.out) / "compile.json").string(), {{"command", "compile"}},
                std::move(tasks));
    const Interrupts interrupts;
    run.run([&](size_t task, double, const std::function<std::string()> &label) -> TaskOutcome {
        const Plan plan = read_plan(run.tasks()[task].about.at("plan").get<std::string>(), Times::Drop);
        const std::string path = run.tasks()[task].made.front();
        ProgressLine line(options.quiet);
        compile_plan(plan, path + ".part", cores_of_machine(), count_variants(line, plan, label()));
        // A run that is killed leaves no half of an object.
        std::filesystem::rename(path + ".part", path);
        return {TaskState::Done, fmt::format("{} variants", plan.variants.size()), {}};
    });
}

}  // namespace
}  // namespace profile_command

void add_profile_command(CLI::App &app) {
    using namespace profile_command;
    const auto options = std::make_shared<Options>();
    CLI::App *command = app.add_subcommand(
        "profile", "Measure a plan's time table on this machine, by which the dispatcher chooses variants");
    CLI::Option *plans =
        command
            ->add_option(
                "plan", options->plans,
                "Plan files of a PolyKernel, the most demanding first. The first that this CPU can run is measured; if "
                "it can run none, the portable plan")
            ->required();
    add_list_options(*command, options->all, "Measure all plans of a folder that this machine can run", plans);
    CLI::Option *out = command->add_option(
        "-o,--out", options->out,
        "Time table to write, for distile_kernel_load_times (default: NAME.times.json); with --all, a folder of them");
    CLI::Option *into_plan =
        command->add_flag("--into-plan", options->into_plan, "Write the table into the plan file instead");
    into_plan->excludes(out);
    CLI::Option *orders = command->add_flag(
        "--orders", options->orders,
        "First measure in which order each variant had better get its tiles, and write that into the plan too");
    orders->needs(into_plan);
    command
        ->add_flag("--replace", options->replace,
                   "Drop the plan's times for other numbers of threads, which older code may have taken")
        ->needs(into_plan);
    for (const Backend *backend : backends()) {
        const MeasureBackend &measured = measure_backend(backend->name);
        command
            ->add_option(fmt::format("--{}s", backend->worker), options->workers[backend],
                         fmt::format("Numbers of {}s to measure plans for {} with (default: {})", backend->worker,
                                     backend->display_name, measured.default_workers))
            ->delimiter(',')
            ->check(CLI::Range(measured.least_workers, 4096));
    }
    command
        ->add_option("--seconds", options->seconds_per_variant,
                     "Seconds to spend on each variant and number of threads")
        ->capture_default_str()
        ->check(CLI::Range(0.01, 600.0));
    command->add_option("--weights", options->weights, weights_option_help);
    CLI::Option *limit =
        command->add_option("--cpu-features", options->cpu_features,
                            "Use no other CPU features than these, like the option of contexts; \"\" for "
                            "plain x86-64");
    CLI::Option *object = command->add_option(
        "--object", options->object,
        "Measure this shared object of `distile compile` instead of compiling; with --all, those of a "
        "folder that `distile compile --all` wrote");
    orders->excludes(object);
    command->add_flag("--json", options->json, "Print the table as JSON");
    command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors and warnings");
    command->footer(
        "With --all, profile.json beside the tables says what became of each plan. The same command skips what is\n"
        "done, and measures again what is doubtful or has changed since.\n"
        "Examples:\n  distile profile data/plans/conv3x3_256_avx2.json -o times.json\n"
        "  distile profile --all my_plans -o my_times --threads 1,2,4\n"
        "  distile profile --all my_plans --object my_objects --into-plan\n"
        "  distile profile my_plan.json --into-plan --threads 1,2,4\n"
        "  distile profile data/plans/conv3x3_256_avx512.json data/plans/conv3x3_256_avx2.json\n"
        "  distile profile gpu_plan.json --object gpu_plan.so --multiprocessors 0,16");
    command->callback([options, limit, plans] {
        options->limit_cpu = limit->count() > 0;
        require_one_or_list(options->all, *plans);
        if (options->all.list.empty()) {
            profile_plan(*options);
        } else {
            profile_all(*options);
        }
    });
}

void add_compile_command(CLI::App &app) {
    using namespace profile_command;
    const auto options = std::make_shared<CompileOptions>();
    CLI::App *command = app.add_subcommand(
        "compile", "Compile a plan to a shared object, which `distile profile` measures on any machine");
    CLI::Option *plan = command->add_option("plan", options->plan, "Plan file")->required();
    add_list_options(*command, options->all, "Compile all plans of a folder", plan);
    command->add_option("-o,--out", options->out, "Shared object to write; with --all, a folder of them")->required();
    command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors");
    command->footer(
        "The exit status is 4 where a schedule may be at fault, and 1 where anything else is, or with --all always.\n"
        "With --all, the same command goes on after an interruption, and compiles again what has changed.\n"
        "Examples:\n  distile compile data/plans/conv3x3_256_cuda.json -o conv3x3_256_cuda.so\n"
        "  distile compile --all my_plans --only '_avx512$' -o my_objects");
    command->callback([options, plan] {
        require_one_or_list(options->all, *plan);
        if (options->all.list.empty()) {
            compile(*options);
        } else {
            compile_all(*options);
        }
    });
}

}  // namespace distile
