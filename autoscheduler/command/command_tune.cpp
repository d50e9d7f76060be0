#include "commands.h"
#include "report.h"
#include "search_session.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace distile {

namespace {

struct TuneOptions : SessionOptions {
    std::string plan, log, folder, include;
    double seconds = 0;
    bool json = false, quiet = false;
};

/** Letters, digits and underscores of a file's name: the name of the plan in it. */
std::string name_of(const std::string &path, const Operator &op) {
    const std::string stem = std::filesystem::path(path).stem().string();
    const bool legal =
        !stem.empty() && (stem[0] < '0' || stem[0] > '9') &&
        stem.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string::npos;
    return legal ? stem : op.name + "_tuned";
}

void warn(const std::string &text) {
    std::fputs(fmt::format("distile: warning: {}.\n", text).c_str(), stderr);
}

enum class Ending { Finished, Stopped, Waiting };

/** Measures until the budget of trials is spent, it is stopped, or the next trials wait to be measured elsewhere. */
Ending search(const TuneOptions &options, const Session &session, SearchLog &log, const Stopwatch &watch) {
    ProgressLine line(options.quiet);
    std::vector<Measurement> measured = log.measured();
    const double before_s = measured.empty() ? 0 : measured.back().elapsed_s;
    const auto show = [&](const std::string &what) {
        const Measurement *dense = best_dense(measured);
        line.show(fmt::format("{} of {} trials{}: {}", measured.size(), options.search.trials,
                              dense ? fmt::format(", dense {:.0f} us", dense->times.back().us) : "", what),
                  std::min(1.0, static_cast<double>(measured.size()) / options.search.trials));
    };
    const auto record = [&](Measurement measurement) {
        measurement.elapsed_s = before_s + watch.elapsed();
        log.append(measurement);
        show("measuring");
    };
    BatchHooks hooks;
    hooks.stop = [&] { return watch.stop(); };
    hooks.progress = [&](const std::string &what, int) { show(what); };
    const int jobs = options.parallel_jobs();
    FolderMeasurer folder(options.folder, session.batch_setup(options), jobs, hooks);
    if (!options.folder.empty()) {
        folder.collect(log.measured(), [&](const Measurement &measurement) {
            measured.push_back(measurement);
            record(measurement);
        });
    }
    if (static_cast<int>(measured.size()) >= options.search.trials) {
        return Ending::Finished;
    }
    folder.learn_reference(measured);
    DeviceMeasurer device(session.batch_setup(options), jobs, hooks, measured);
    Measurer &measurer = options.folder.empty() ? static_cast<Measurer &>(device) : folder;
    show("ranking the space by the bound");
    const Pool sparse = session.pool(!options.no_bound, false), dense = session.pool(!options.no_bound, true);
    const std::unique_ptr<CostModel> sparse_model = session.model(options, false),
                                     dense_model = session.model(options, true);
    Search search(sparse, dense, session.masks, *sparse_model, *dense_model, measurer, options.search);
    const bool finished = search.run(measured, record, hooks.stop);
    if (const auto *learned = dynamic_cast<const LearnedModel *>(sparse_model.get())) {
        learned->save(options.log + ".model.json");
    }
    return folder.waiting() ? Ending::Waiting : finished ? Ending::Finished : Ending::Stopped;
}

void tune(TuneOptions options) {
    const Session session(options);
    if (options.search.counts == 0) {
        options.search.counts = get_backend(session.device.backend).tile_counts;
    }
    if (options.log.empty()) {
        options.log = std::filesystem::path(options.plan).replace_extension(".log").string();
    }
    if (std::filesystem::weakly_canonical(options.log) == std::filesystem::weakly_canonical(options.plan)) {
        throw FileError("the plan and the log would be one file, '" + options.plan +
                        "': name another with -o or --log");
    }
    if (session.empty_masks > 0) {
        warn(fmt::format("{} masks without an active pixel are left out", session.empty_masks));
    }
    std::vector<MaskSet> held_out;
    if (!options.held_out.empty()) {
        held_out.push_back(read_mask_set(options.held_out, session.op));
    }
    if (!options.include.empty()) {
        for (const PlanVariant &variant : read_plan(options.include).variants) {
            const std::string problem = session.space().why_illegal(variant.theta, session.workload.problem);
            if (!problem.empty()) {
                throw FileError("the plan '" + options.include + "', variant \"" + variant.name + "\": " + problem);
            }
            options.search.include.emplace_back(variant.theta, variant.dense);
        }
    }
    if (options.folder.empty()) {
        session.check_machine(options);
    }
    // A write beyond a limit is an error with a message, and no signal.
    std::signal(SIGXFSZ, SIG_IGN);
    SearchLog log(options.log, session.header(options));
    if (!log.warning().empty()) {
        warn(log.warning());
    }
    const Interrupts interrupts;
    const Ending ending = search(options, session, log, Stopwatch(options.seconds));
    const size_t trials = log.measured().size();
    if (ending == Ending::Waiting) {
        say_how_to_measure(options.folder, trials, options.log);
        return;
    }
    if (Interrupts::seen()) {
        std::fputs(fmt::format("distile: stopped. The {} measurements so far are kept in {}: run the same command "
                               "again to continue.\n",
                               trials, options.log)
                       .c_str(),
                   stderr);
        throw CLI::RuntimeError(130);
    }
    if (ending == Ending::Stopped && !options.quiet) {
        std::fputs(
            fmt::format("The {:.0f} seconds are spent after {} of {} trials: run the same command again to continue.\n",
                        options.seconds, trials, options.search.trials)
                .c_str(),
            stderr);
    }
    if (!best_dense(log.measured())) {
        throw FileError(
            "no dense schedule is measured yet, so there is no plan to write; run the same command again to continue");
    }
    const Solution solution = solve(log.measured(), session.masks, options.search.k);
    write_file(options.plan, format_json(to_json(plan_of(session, solution, name_of(options.plan, session.op)))));
    if (options.quiet && !options.json) {
        return;
    }
    const nlohmann::json report = make_report({log.header(), log.measured(), ""}, session.masks,
                                              held_out.empty() ? nullptr : &held_out.front(), options.search.k);
    if (options.json) {
        std::fputs(format_json(report).c_str(), stdout);
    } else {
        std::fputs(describe_report(report).c_str(), stdout);
        std::fputs(fmt::format("\nThe plan is written to {}, everything measured is in {}.\n"
                               "distile profile {} --into-plan measures a finer time table.\n",
                               options.plan, options.log, options.plan)
                       .c_str(),
                   stdout);
    }
}

}  // namespace

void add_tune_command(CLI::App &app) {
    const auto options = std::make_shared<TuneOptions>();
    options->search.counts = 0;
    CLI::App *command = app.add_subcommand(
        "tune", "Search for the PolyKernel of an operator: the k variants that together are fastest over some masks");
    add_session_options(*command, *options);
    add_search_options(*command, *options);
    command->add_option("--held-out", options->held_out, "Masks that the search does not see, to judge its result");
    command->add_option("-o,--out", options->plan, "Plan to write")->required();
    command->add_option("--log", options->log, "Where measurements are kept (default: beside the plan)");
    command
        ->add_option("--seconds", options->seconds,
                     "End this run after so many seconds; run the same command again to continue")
        ->check(CLI::Range(0.1, 1e7));
    command->add_option("--include", options->include, "Plan whose variants are measured first");
    command->add_option("--folder", options->folder,
                        "Compile the trials into this folder and end, to measure them on another machine");
    command->add_flag("--json", options->json, "Print the result as JSON");
    command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors and warnings");
    command->footer(
        "Every measurement is kept: run the same command again to continue a search.\n"
        "Examples:\n"
        "  distile tune data/operators/conv3x3_256.json --masks masks.npy -k 6 --trials 300 -o my_plan.json\n"
        "  distile tune my_operator.json --masks blob:0.1:1 blob:0.3:2 blob:0.6:3 --device my_cpu.json \\\n"
        "      --held-out blob:0.2:9 --seconds 540 -o my_plan.json\n"
        "  distile tune my_operator.json --masks masks.npy --backend cuda --device h200.json --folder batch -o "
        "my_plan.json");
    command->callback([options] { tune(*options); });
}

}  // namespace distile
