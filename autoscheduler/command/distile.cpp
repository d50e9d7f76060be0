/** \file
 * The distile command.
 */
#include "commands.h"
#include "cpu_features.h"
#include "info.h"
#include "plan.h"
#include "portable.h"
#include "profile.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fmt/core.h>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

namespace {

using namespace distile;

struct EmitOptions {
    std::string op, symbol, source, header;
    std::vector<std::string> plans;
};

struct CompileOptions {
    std::string plan, out;
    bool quiet = false;
};

struct ProfileCommandOptions {
    std::vector<std::string> plans;
    std::string object, out;
    bool into_plan = false, json = false, quiet = false;
    std::string cpu_features;
    bool limit_cpu = false;
    std::vector<int> multiprocessors;
    ProfileOptions profile;
};

void emit(const EmitOptions &options) {
    const Operator op = read_operator(options.op);
    std::vector<Plan> plans;
    for (const std::string &path : options.plans) {
        const Plan plan = read_plan(path);
        if (!(op == plan.op)) {
            throw FileError("the plan '" + path + "' was made for the operator '" + plan.op.name + "' (" +
                            plan.op.summary() + "), not for '" + op.name + "' (" + op.summary() + ")");
        }
        plans.push_back(plan);
    }
    write_file(options.source, emit_polykernels(plans, options.symbol));
    write_file(options.header, fmt::format("/* {0}: {1}. */\n"
                                           "#ifndef DISTILE_POLYKERNEL_{2}\n#define DISTILE_POLYKERNEL_{2}\n\n"
                                           "#include <distile/distile.h>\n\n"
                                           "#ifdef __cplusplus\nextern \"C\" {{\n#endif\n\n"
                                           "extern const distile_polykernel {2};\n\n"
                                           "#ifdef __cplusplus\n}}\n#endif\n\n#endif\n",
                                           plans.front().name, op.summary(), options.symbol));
}

/** What compiling reports to. */
std::function<void(int)> count_variants(ProgressLine &line, const Plan &plan) {
    return [&](int done) {
        line.show("compiling", static_cast<double>(done) / static_cast<double>(plan.variants.size()));
    };
}

int jobs() {
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void compile(const CompileOptions &options) {
    const Plan plan = read_plan(options.plan);
    {
        ProgressLine line(options.quiet);
        compile_plan(plan, options.out, jobs(), count_variants(line, plan));
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
ChosenPlan choose_plan(const ProfileCommandOptions &options) {
    const char *allowed = options.limit_cpu ? options.cpu_features.c_str() : nullptr;
    if (allowed && !are_cpu_features(allowed)) {
        throw FileError(fmt::format("of --cpu-features '{}' not all are known", allowed));
    }
    std::vector<Plan> plans;
    std::string lacking;
    for (const std::string &path : options.plans) {
        plans.push_back(read_plan(path));
        const Plan &plan = plans.back();
        if (plan.backend == "cuda" && options.plans.size() > 1) {
            throw FileError(fmt::format("the plan '{}' is for NVIDIA GPUs: measure it by itself", path));
        }
        if (!(plan.op == plans.front().op)) {
            throw FileError(
                fmt::format("the plan '{}' is for another operator than '{}'", path, options.plans.front()));
        }
        const std::string missing = missing_cpu_feature(cpu_features(plan.target).c_str(), allowed);
        if (missing.empty()) {
            return {plan, path};
        }
        lacking += fmt::format("{}'{}' for '{}'", lacking.empty() ? "" : ", ", missing, path);
    }
    if (options.into_plan || !options.object.empty()) {
        throw FileError("this CPU lacks " + lacking);
    }
    if (!options.quiet) {
        std::fputs(fmt::format("This CPU lacks {}: measuring the portable plan.\n", lacking).c_str(), stderr);
    }
    return {portable_plan(plans.front().op), ""};
}

void profile_plan(ProfileCommandOptions options) {
    auto [plan, plan_path] = choose_plan(options);
    const bool gpu = plan.backend == "cuda";
    if (!(gpu ? options.profile.threads : options.multiprocessors).empty()) {
        throw FileError(fmt::format("the plan '{}' is for {}", plan.name,
                                    gpu ? "NVIDIA GPUs: give --multiprocessors in place of --threads"
                                        : "CPUs: give --threads in place of --multiprocessors"));
    }
    if (gpu) {
        options.profile.threads = options.multiprocessors;
    }
    if (gpu) {
        check_gpu();  // Before anything is compiled.
    }
    {
        ProgressLine line(options.quiet);
        const SharedObject object = options.object.empty() ? SharedObject(plan, jobs(), count_variants(line, plan))
                                                           : SharedObject(plan, options.object);
        Profile profiled = profile(plan, object, options.profile,
                                   [&](const std::string &what, double part) { line.show(what, part); });
        plan.profiled_device = std::move(profiled.device);
        plan.times = std::move(profiled.times);
    }
    const nlohmann::json table = {
        {"distile_times", 1}, {"kernel", plan.name}, {"device", plan.profiled_device}, {"times", to_json(plan.times)}};
    const std::string path = options.into_plan     ? plan_path
                             : options.out.empty() ? plan.name + ".times.json"
                                                   : options.out;
    write_file(path, format_json(options.into_plan ? to_json(plan) : table));
    if (options.json) {
        std::fputs(format_json(table).c_str(), stdout);
    } else if (!options.quiet) {
        std::fputs(describe_plan(plan).c_str(), stdout);
        std::fputs(fmt::format("\nWritten to {}\n", path).c_str(), stdout);
    }
}

int run(int argc, char **argv) {
    CLI::App app("distile: masked operators that compute only where a mask says so");
    app.require_subcommand(1);

    add_info_command(app);
    add_portable_command(app);
    add_show_command(app);
    add_calibrate_command(app);
    add_rank_command(app);
    add_tune_command(app);
    add_report_command(app);
    add_measure_command(app);
    add_experiment_command(app);

    ProfileCommandOptions profile_options;
    CLI::App *profile_command = app.add_subcommand(
        "profile", "Measure the time table of a plan on this machine, by which the dispatcher chooses");
    profile_command
        ->add_option("plan", profile_options.plans,
                     "Plan files of an operator, as they stand behind one another in a PolyKernel: the first that this "
                     "CPU can run is measured, or where it can run none, the portable plan")
        ->required();
    CLI::Option *out =
        profile_command->add_option("-o,--out", profile_options.out,
                                    "Time table to write, for distile_kernel_load_times (default: NAME.times.json)");
    profile_command->add_flag("--into-plan", profile_options.into_plan, "Write the table into the plan file instead")
        ->excludes(out);
    profile_command
        ->add_option("--threads", profile_options.profile.threads,
                     "Numbers of threads to measure with (default: 1 and one per core)")
        ->delimiter(',')
        ->check(CLI::Range(1, 4096));
    profile_command
        ->add_option("--seconds", profile_options.profile.seconds_per_variant,
                     "Seconds to spend on each variant and number of threads")
        ->capture_default_str()
        ->check(CLI::Range(0.01, 600.0));
    profile_command
        ->add_option("--multiprocessors", profile_options.multiprocessors,
                     "Numbers of a GPU's multiprocessors to measure with, by green contexts; 0: all (default)")
        ->delimiter(',')
        ->check(CLI::Range(0, 4096));
    CLI::Option *limit = profile_command->add_option("--cpu-features", profile_options.cpu_features,
                                                     "Take the CPU to have no more than these features, as the option "
                                                     "of contexts does; \"\" for plain x86-64");
    profile_command->add_option("--object", profile_options.object,
                                "Measure what `distile compile` wrote, and compile nothing");
    profile_command->add_flag("--json", profile_options.json, "Print the table as JSON");
    profile_command->add_flag("-q,--quiet", profile_options.quiet, "Print nothing but errors");
    profile_command->footer("Examples:\n  distile profile data/plans/conv3x3_256_avx2.json -o times.json\n"
                            "  distile profile my_plan.json --into-plan --threads 1,2,4\n"
                            "  distile profile data/plans/conv3x3_256_avx512.json data/plans/conv3x3_256_avx2.json\n"
                            "  distile profile gpu_plan.json --object gpu_plan.so --multiprocessors 0,16");
    profile_command->callback([&] {
        profile_options.limit_cpu = limit->count() > 0;
        profile_plan(profile_options);
    });

    CompileOptions compile_options;
    CLI::App *compile_command = app.add_subcommand(
        "compile", "Compile a plan to a shared object, which `distile profile` measures on any machine");
    compile_command->add_option("plan", compile_options.plan, "Plan file")->required();
    compile_command->add_option("-o,--out", compile_options.out, "Shared object to write")->required();
    compile_command->add_flag("-q,--quiet", compile_options.quiet, "Print nothing but errors");
    compile_command->footer("Example:\n  distile compile data/plans/conv3x3_256_cuda.json -o conv3x3_256_cuda.so");
    compile_command->callback([&] { compile(compile_options); });

    EmitOptions emit_options;
    CLI::App *emit_command = app.add_subcommand("emit", "Write the C descriptor of plans (used by the build)");
    emit_command->add_option("--operator", emit_options.op, "Operator file")->required();
    emit_command->add_option("--plan", emit_options.plans, "Plan files, the most demanding first")->required();
    emit_command->add_option("--symbol", emit_options.symbol, "C name of the PolyKernel")->required();
    emit_command->add_option("--source", emit_options.source, "C file to write")->required();
    emit_command->add_option("--header", emit_options.header, "Header to write")->required();
    emit_command->callback([&] { emit(emit_options); });

    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        return app.exit(error);
    }
    return 0;
}

/** Without characters that steer a terminal: messages quote what files say. */
std::string printable(std::string text) {
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return (c < ' ' && c != '\n') || c == 0x7f; }, '?');
    return text;
}

}  // namespace

int main(int argc, char **argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "distile: error: %s.\n", printable(error.what()).c_str());
        return 1;
    }
}
