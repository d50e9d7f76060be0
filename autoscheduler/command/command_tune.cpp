#include "autoscheduler/bound/bound_backend.h"
#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/command/commands.h"
#include "autoscheduler/command/plan_search.h"
#include "autoscheduler/search/report.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

namespace distile {

namespace tune_command {
namespace {

/** The levels of CPUs that --also takes, the most demanding first. */
std::vector<std::string> lesser_levels() {
    std::vector<std::string> levels;
    for (const CpuLevel &level : host_platform().architecture.levels) {
        levels.push_back(level_of(host_platform().target(level.words)));
    }
    levels.erase(levels.begin());
    return levels;
}

struct TuneOptions : PlanSearchOptions {
    std::vector<std::string> also;
    bool json = false;
};

/** The path of what is for CPUs of another level: the level at the end of its name is replaced, or the other one is
 * appended. */
std::string path_for(const std::string &path, const std::string &level, const std::string &other) {
    const std::filesystem::path full(path);
    std::string stem = full.stem().string();
    if (const size_t end = stem.rfind("_" + level); end != std::string::npos && end + level.size() + 1 == stem.size()) {
        stem.resize(end);
    }
    return (full.parent_path() / (stem + "_" + other + full.extension().string())).string();
}

/** What CPUs that cannot run the first plan take; "" if there are none. */
std::string describe_others(const std::vector<std::unique_ptr<PlanSearch>> &searches) {
    std::string level = level_of(searches.front()->session().code.target), text, paths;
    if (searches.front()->session().device.backend != portable_backend().name) {
        return "";
    }
    const Platform &platform = *find_platform(searches.front()->session().code.target);
    const std::string lowest = level_of(platform.target(platform.architecture.levels.back().words));
    for (const auto &search : searches) {
        if (search->has_plan()) {
            if (search != searches.front()) {
                text += fmt::format("{} without {} takes {}", text.empty() ? "A CPU" : ", one", level,
                                    search->options().plan);
            }
            level = level_of(search->session().code.target);
            paths += " " + search->options().plan;
        }
    }
    if (level != lowest) {
        text += fmt::format("{} without {} takes the portable plan, whose schedules the bound chooses",
                            text.empty() ? "A CPU" : ", one", level);
        text += level == "avx512" ? "; with --also avx2 this command searches for it too" : "";
    }
    text += text.empty() ? "" : ".\n";
    return searches.size() == 1 ? text : text + "distile_add_polykernel takes all of them: PLAN" + paths + "\n";
}

/** The options of the search for the CPUs of a level below the device. */
PlanSearchOptions for_level(const PlanSearch &main, const std::string &level) {
    PlanSearchOptions options = main.options();
    const std::string own = level_of(main.session().code.target);
    options.level = level;
    options.target.clear();
    // Its schedules are for the device's vectors.
    options.include.clear();
    options.search.include.clear();
    options.plan = path_for(options.plan, own, level);
    options.log = path_for(options.log, own, level);
    options.folder = options.folder.empty() ? "" : path_for(options.folder, own, level);
    return options;
}

void tune(const TuneOptions &options) {
    PlanSearchOptions main_options = static_cast<const PlanSearchOptions &>(options);
    main_options.one_of_several = !options.also.empty();
    std::vector<std::unique_ptr<PlanSearch>> searches;
    searches.push_back(std::make_unique<PlanSearch>(main_options));
    // The most demanding first, as in a build.
    for (const std::string &level : lesser_levels()) {
        if (std::find(options.also.begin(), options.also.end(), level) != options.also.end()) {
            searches.push_back(std::make_unique<PlanSearch>(for_level(*searches.front(), level)));
        }
    }
    if (const int empty = searches.front()->session().empty_masks; empty > 0) {
        warn(fmt::format("{} masks without an active pixel are left out", empty));
    }
    for (const auto &search : searches) {
        search->check_machine();
    }
    // A write beyond a limit is an error with a message, and no signal.
    std::signal(SIGXFSZ, SIG_IGN);
    for (const auto &search : searches) {
        search->open_log();
    }
    const Interrupts interrupts;
    const Stopwatch watch(options.seconds);
    nlohmann::json reports = nlohmann::json::array();
    std::string complaints;
    for (size_t i = 0; i < searches.size(); i++) {
        PlanSearch &search = *searches[i];
        // What a search leaves of its share, the next ones have.
        const double share =
            options.seconds > 0
                ? std::max(0.001, (options.seconds - watch.elapsed()) / static_cast<double>(searches.size() - i))
                : 0;
        const Ending ending = search.search(share);
        if (ending == Ending::Waiting) {
            say_how_to_measure(search.options().folder, search.log().measured().size(), search.options().log);
            continue;
        }
        search.finish(ending, share);
        if (!search.has_plan()) {
            complaints += (complaints.empty() ? "" : ".\n") + search.complaint();
            continue;
        }
        add_code_for_all_weights(search);
        if (options.json) {
            reports.push_back(search.report());
        } else if (!options.quiet) {
            std::fputs(fmt::format("{}{}\nThe plan is written to {}, everything measured is in {}.\n"
                                   "distile profile {} --into-plan measures a finer time table.\n",
                                   searches.size() == 1 ? "" : fmt::format("{}:\n", search.options().plan),
                                   describe_report(search.report()), search.options().plan, search.options().log,
                                   search.options().plan)
                           .c_str(),
                       stdout);
        }
    }
    if (options.json && !reports.empty()) {
        std::fputs(format_json(searches.size() == 1 ? reports[0] : reports).c_str(), stdout);
    } else if (!options.quiet && searches.front()->has_plan()) {
        std::fputs(describe_others(searches).c_str(), stdout);
    }
    if (!complaints.empty()) {
        throw FileError(complaints);
    }
}

}  // namespace
}  // namespace tune_command

void add_tune_command(CLI::App &app) {
    using namespace tune_command;
    const auto options = std::make_shared<TuneOptions>();
    options->search.counts = 0;
    CLI::App *command = app.add_subcommand(
        "tune", "Search for the PolyKernel of an operator: the k variants that together are fastest over some masks");
    add_session_options(*command, *options);
    add_search_options(*command, *options);
    command->add_option("--held-out", options->held_out, "Masks that the search does not see, to judge its result");
    command->add_option("-o,--out", options->plan, "Plan to write")->required();
    command->add_option("--log", options->log, "Where measurements are kept (default: beside the plan)");
    command->add_flag("--again", options->again, again_option_help);
    command
        ->add_option("--seconds", options->seconds,
                     "Seconds after which this run ends; run the same command again to continue")
        ->check(CLI::Range(0.1, 1e7));
    command->add_option("--include", options->include, "Plan whose variants are measured first");
    command->add_option("--folder", options->folder,
                        "Compile the trials into this folder and end, to measure them on another machine");
    command
        ->add_option(
            "--also", options->also,
            "Search also for CPUs with no more than these features, on this machine: avx2, x86_64. Each gets a "
            "plan beside the first, and an equal share of --seconds")
        ->check(CLI::IsMember(lesser_levels()));
    command->add_flag("--json", options->json, "Print the result as JSON");
    command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors and warnings");
    command->footer(
        "Every measurement is kept: run the same command again to continue a search. A plan is written as soon as a\n"
        "dense and a masked schedule are measured; a run that ends before fails, and leaves the plan as it was.\n"
        "Examples:\n"
        "  distile tune data/operators/conv3x3_256.json --masks masks.npy -k 6 --trials 300 -o my_plan.json\n"
        "  distile tune my_operator.json --masks blob:0.1:1 blob:0.3:2 blob:0.6:3 --device my_cpu.json \\\n"
        "      --held-out blob:0.2:9 --seconds 540 -o my_plan.json\n"
        "  distile tune my_operator.json --masks masks.npy --also avx2 -o my_avx512.json   # writes my_avx2.json too\n"
        "  distile tune my_operator.json --masks masks.npy --backend cuda --device h200.json --folder batch -o "
        "my_plan.json\n"
        "  distile tune my_operator.json --masks masks.npy --backend cuda --device h200.json --math tf32 -o "
        "my_tf32.json");
    command->callback([options] { tune(*options); });
}

}  // namespace distile
