#include "autoscheduler/command/commands.h"
#include "autoscheduler/compile/process.h"
#include "autoscheduler/measure/trial_batch.h"
#include "plans/operator.h"
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fmt/core.h>
#include <memory>

namespace distile {

namespace measure_command {
namespace {

struct MeasureCommandOptions {
    std::string folder;
    double seconds = 0;
    bool quiet = false;
};

struct WorkerOptions {
    std::string folder, result;
    int trial = 0, reference = -1;
};

void measure(const MeasureCommandOptions &options) {
    const Interrupts interrupts;
    const auto all = static_cast<double>(read_batch(options.folder).trials.size());
    bool finished = false;
    {
        ProgressLine line(options.quiet);
        BatchHooks hooks;
        hooks.stop = &Interrupts::seen;
        hooks.progress = [&](const std::string &what, int done) { line.show(what, done / all); };
        finished = measure_batch(options.folder, options.seconds, hooks, [](const Measurement &) {});
    }
    if (!options.quiet) {
        const size_t results = read_results(options.folder).size();
        std::fputs(fmt::format("{} trials are measured in {}/results.jsonl{}\n", results, options.folder,
                               finished ? ": all of them" : "; run the same command again for the others")
                       .c_str(),
                   stdout);
    }
    if (Interrupts::seen()) {
        throw CLI::RuntimeError(130);
    }
}

}  // namespace
}  // namespace measure_command

void add_measure_command(CLI::App &app) {
    using namespace measure_command;
    const auto options = std::make_shared<MeasureCommandOptions>();
    CLI::App *command = app.add_subcommand(
        "measure", "Measure on this machine what `distile tune --folder` compiled on this one or another");
    command->add_option("folder", options->folder, "Folder with a request and shared objects")->required();
    command->add_option("--seconds", options->seconds, "Seconds after which no trial begins (default: no limit)")
        ->check(CLI::Range(0.1, 1e6));
    command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors");
    command->footer("Results are kept: run the same command again to measure what is missing.\n"
                    "Example:\n  distile measure batch --seconds 540");
    command->callback([options] { measure(*options); });

    // What is measured runs in a process of its own, which may crash.
    const auto worker = std::make_shared<WorkerOptions>();
    CLI::App *worker_command = app.add_subcommand("worker", "Measure one trial (used by tune and measure)")->group("");
    worker_command->add_option("folder", worker->folder)->required();
    worker_command->add_option("trial", worker->trial)->required();
    worker_command->add_option("reference", worker->reference)->required();
    worker_command->add_option("result", worker->result)->required();
    worker_command->callback([worker] {
        const int status = run_worker(worker->folder, worker->trial, worker->reference, worker->result);
        if (status != 0) {
            throw CLI::RuntimeError(status);
        }
    });
}

}  // namespace distile
