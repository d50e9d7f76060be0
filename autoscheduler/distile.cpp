/** \file
 * The distile command.
 */
#include "commands.h"
#include "info.h"
#include "plan.h"
#include "profile.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <thread>

namespace {

using namespace distile;

struct EmitOptions {
    std::string op, plan, symbol, source, header;
};

struct ProfileCommandOptions {
    std::string plan, out;
    bool into_plan = false, json = false, quiet = false;
    ProfileOptions profile;
};

void emit(const EmitOptions &options) {
    const Plan plan = read_plan(options.plan);
    const Operator op = read_operator(options.op);
    if (!(op == plan.op)) {
        throw FileError("the plan '" + options.plan + "' was made for the operator '" + plan.op.name + "' (" +
                        plan.op.summary() + "), not for '" + op.name + "' (" + op.summary() + ")");
    }
    write_file(options.source, emit_polykernel(plan, options.symbol));
    write_file(options.header, fmt::format("/* {0}: {1}. */\n"
                                           "#ifndef DISTILE_POLYKERNEL_{2}\n#define DISTILE_POLYKERNEL_{2}\n\n"
                                           "#include <distile/distile.h>\n\n"
                                           "#ifdef __cplusplus\nextern \"C\" {{\n#endif\n\n"
                                           "extern const distile_polykernel {2};\n\n"
                                           "#ifdef __cplusplus\n}}\n#endif\n\n#endif\n",
                                           plan.name, op.summary(), options.symbol));
}

void profile_plan(ProfileCommandOptions options) {
    Plan plan = read_plan(options.plan);
    if (plan.backend == "cuda") {
        throw FileError("the plan '" + options.plan +
                        "' is for NVIDIA GPUs, and this command measures on the CPU only: "
                        "give a kernel its times on the GPU with distile_kernel_add_time");
    }
    if (options.profile.threads.empty()) {
        const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
        options.profile.threads = cores > 1 ? std::vector<int>{1, cores} : std::vector<int>{1};
    }
    {
        ProgressLine line(options.quiet);
        plan.times =
            profile(plan, options.profile, [&](const std::string &what, double part) { line.show(what, part); });
    }
    plan.profiled_device = device_name();
    const nlohmann::json table = {
        {"distile_times", 1}, {"kernel", plan.name}, {"device", plan.profiled_device}, {"times", to_json(plan.times)}};
    const std::string path = options.into_plan     ? options.plan
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
    add_show_command(app);
    add_calibrate_command(app);
    add_rank_command(app);

    ProfileCommandOptions profile_options;
    CLI::App *profile_command = app.add_subcommand(
        "profile", "Compile a plan and measure its time table on this machine, by which the dispatcher chooses");
    profile_command->add_option("plan", profile_options.plan, "Plan file")->required();
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
    profile_command->add_flag("--json", profile_options.json, "Print the table as JSON");
    profile_command->add_flag("-q,--quiet", profile_options.quiet, "Print nothing but errors");
    profile_command->footer("Examples:\n  distile profile data/plans/conv3x3_256_avx2.json -o times.json\n"
                            "  distile profile my_plan.json --into-plan --threads 1,2,4");
    profile_command->callback([&] { profile_plan(profile_options); });

    EmitOptions emit_options;
    CLI::App *emit_command = app.add_subcommand("emit", "Write the C descriptor of a plan (used by the build)");
    emit_command->add_option("--operator", emit_options.op, "Operator file")->required();
    emit_command->add_option("--plan", emit_options.plan, "Plan file")->required();
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

}  // namespace

int main(int argc, char **argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "distile: error: %s.\n", error.what());
        return 1;
    }
}
