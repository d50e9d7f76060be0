#include "autoscheduler/bound/bound_backend.h"
#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/command/commands.h"
#include "autoscheduler/command/hash.h"
#include "autoscheduler/command/list_run.h"
#include "autoscheduler/command/operator_list.h"
#include "autoscheduler/command/plan_search.h"
#include "autoscheduler/search/report.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <functional>
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
    ListRunOptions all;
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

/** A plan to search for. */
struct ListedSearch {
    PlanSearchOptions options;
    ListTask task;
    std::optional<ChosenPlan> shipped; /**< The plan whose schedules are measured first. */
};

/** The search for an operator of a list and for CPUs of a level, "" for the device. */
ListedSearch listed_search(const TuneOptions &options, const ListedOperator &listed, const std::string &level) {
    ListedSearch search{static_cast<const PlanSearchOptions &>(options), {}, {}};
    search.options.op = listed.file;
    search.options.dtype = listed.op.dtype().name;
    search.options.math = listed.math;
    search.options.level = level;
    search.options.one_of_list = true;
    search.task.about = {{"operator", listed.file}, {"type", search.options.dtype}};
    search.task.version = hash_text(to_json(listed.op).dump());
    try {
        const DeviceProfile device = find_device(search.options);
        PlanToMake made = plan_to_make(listed.op, device, choose_code(listed.op, device, options.target, listed.math));
        search.task.name = std::move(made.name);
        search.shipped = std::move(made.shipped);
        if (search.shipped) {
            search.task.about["starts_from"] = std::filesystem::path(search.shipped->shipped).filename().string();
        }
        search.task.gain = expected_gain(listed, search.shipped, device);
    } catch (const FileError &error) {
        search.task.name = listed.op.name + (level.empty() ? "" : "_" + level);
        search.task.skipped = error.what();
    }
    const std::filesystem::path folder = options.plan;
    search.options.plan = (folder / (search.task.name + ".json")).string();
    search.options.log = (folder / (search.task.name + ".log")).string();
    search.options.folder = options.folder.empty() ? "" : options.folder + "/" + search.task.name;
    search.task.logs = {search.options.log};
    search.task.made = {search.options.plan};
    return search;
}

std::vector<ListedSearch> listed_searches(const TuneOptions &options) {
    const std::vector<std::string> levels = lesser_levels();
    std::vector<ListedSearch> searches;
    for (const ListedOperator &listed : read_operator_list(options.all.list, options.backend)) {
        for (const std::string &level : listed.levels) {
            if (!level.empty() && std::find(levels.begin(), levels.end(), level) == levels.end()) {
                throw FileError(fmt::format("the list '{}' has {} in \"also\"; on this machine it may have '{}'",
                                            options.all.list, quote(level), fmt::join(levels, "' and '")));
            }
            ListedSearch search = listed_search(options, listed, level);
            // Where the device is of a level itself, its plan is the one for that level.
            if (std::none_of(searches.begin(), searches.end(),
                             [&](const ListedSearch &other) { return other.task.name == search.task.name; })) {
                searches.push_back(std::move(search));
            }
        }
    }
    return searches;
}

/** What was found for other plans and is most like a search's own: logs of the same target, those of its kind first. */
std::vector<std::string> logs_to_learn_from(const std::vector<ListedSearch> &searches, const ListRun &run, size_t own) {
    constexpr size_t most = 6;
    std::vector<std::string> logs;
    const std::string kind = read_operator(searches[own].options.op).generator;
    for (const bool same_kind : {true, false}) {
        for (size_t i = 0; i < searches.size() && logs.size() < most; i++) {
            const PlanSearchOptions &options = searches[i].options;
            if (i != own && run.is_done(i) && options.level == searches[own].options.level &&
                options.dtype == searches[own].options.dtype &&
                (read_operator(options.op).generator == kind) == same_kind && std::filesystem::exists(options.log)) {
                logs.push_back(options.log);
            }
        }
    }
    return logs;
}

TaskOutcome search_listed(PlanSearchOptions options, const std::optional<ChosenPlan> &shipped, double seconds,
                          const std::vector<std::string> &logs) {
    PlanSearch search(std::move(options));
    search.check_machine();
    if (shipped) {
        search.include(shipped->plan);
    }
    search.learn_from(logs);
    search.open_log();
    const Ending ending = search.search(seconds);
    if (ending == Ending::Waiting) {
        return {TaskState::Waiting,
                fmt::format("its next trials are compiled in '{0}': run `distile measure {0}` on the device",
                            search.options().folder),
                {}};
    }
    search.finish(ending, seconds);
    if (!search.has_plan()) {
        if (ending == Ending::SecondsSpent) {
            // It goes on with what the others leave of their time.
            return {TaskState::Pending, search.complaint(), {}};
        }
        throw FileError(search.complaint());
    }
    add_code_for_all_weights(search);
    nlohmann::json found = search.costs();
    if (!search.doubt().empty()) {
        found["doubt"] = search.doubt();
    }
    const bool spent = ending == Ending::SecondsSpent;
    std::string why = fmt::format("{} after {} trials{}", costs_in_words(found), found.at("trials").get<int>(),
                                  spent ? ", its share of the time is spent" : "");
    return {spent ? TaskState::SecondsSpent : TaskState::Done, std::move(why), std::move(found)};
}

void tune_all(TuneOptions options) {
    take_suite(options.masks, options.held_out);
    std::vector<ListedSearch> searches = listed_searches(options);
    // A write beyond a limit is an error with a message, and no signal.
    std::signal(SIGXFSZ, SIG_IGN);
    const nlohmann::json settings = {
        {"command", "tune"},        {"device", find_device(options).id()}, {"threads", options.threads},
        {"masks", options.masks},   {"held_out", options.held_out},        {"k", options.search.k},
        {"target", options.target}, {"trials", options.search.trials},     {"strategy", options.strategy}};
    std::vector<ListTask> tasks;
    for (const ListedSearch &search : searches) {
        tasks.push_back(search.task);
    }
    ListRunOptions run_options = options.all;
    run_options.seconds = std::max(run_options.seconds, options.seconds);
    run_options.shares_out = true;
    run_options.again = options.again;
    run_options.json = options.json;
    run_options.quiet = options.quiet;
    ListRun run(run_options, (std::filesystem::path(options.plan) / "tune.json").string(), settings, std::move(tasks));
    // Searches that --only leaves out are no tasks.
    std::vector<ListedSearch> chosen;
    for (const ListTask &task : run.tasks()) {
        chosen.push_back(*std::find_if(searches.begin(), searches.end(),
                                       [&](const ListedSearch &search) { return search.task.name == task.name; }));
    }
    const Interrupts interrupts;
    run.run([&](size_t task, double seconds, const std::function<std::string()> &label) {
        PlanSearchOptions search = chosen[task].options;
        search.label = label;
        return search_listed(std::move(search), chosen[task].shipped, seconds, logs_to_learn_from(chosen, run, task));
    });
}

}  // namespace
}  // namespace tune_command

void add_tune_command(CLI::App &app) {
    using namespace tune_command;
    const auto options = std::make_shared<TuneOptions>();
    options->search.counts = 0;
    CLI::App *command = app.add_subcommand(
        "tune", "Search for the PolyKernel of an operator: the k variants that together are fastest over some masks");
    CLI::Option *op = add_session_options(*command, *options);
    add_search_options(*command, *options);
    const std::vector<CLI::Option *> times = add_list_options(
        *command, options->all,
        "Search for plans of all operators of a list, as data/tuning.json, or of a table, as data/operators.csv", op);
    add_held_out_option(*command, options->held_out);
    command->add_option("-o,--out", options->plan, "Plan to write; with --all, a folder of plans")->required();
    command->add_option("--log", options->log, "Where measurements are kept (default: beside the plan)")->needs(op);
    command->add_flag("--again", options->again, again_option_help);
    CLI::Option *seconds =
        command
            ->add_option("--seconds", options->seconds,
                         "Seconds after which this run ends; run the same command again to continue. With --all: the "
                         "seconds for everything, over all runs")
            ->check(CLI::Range(0.1, 1e7));
    for (CLI::Option *time : times) {
        seconds->excludes(time);
    }
    command->add_option("--include", options->include, "Plan whose variants are measured first")->needs(op);
    command->add_option("--folder", options->folder,
                        "Compile the trials into this folder and end, to measure them on another machine");
    command
        ->add_option(
            "--also", options->also,
            "Search also for CPUs with no more than these features, on this machine: avx2, x86_64. Each gets a "
            "plan beside the first, and an equal share of --seconds")
        ->check(CLI::IsMember(lesser_levels()))
        ->needs(op);
    command->add_flag("--json", options->json, "Print the result as JSON");
    command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors and warnings");
    command->footer(
        "Every measurement is kept: run the same command again to continue a search. A plan is written as soon as a\n"
        "dense and a masked schedule are measured; a run that ends before fails, and leaves the plan as it was.\n"
        "With --all, what ships is measured first. Each plan gets a share of the time that is left, its model learns\n"
        "from plans that are done, and tune.json in the folder says what became of each. Operators without a plan\n"
        "that ships come first. The same command skips what is done.\n"
        "Examples:\n"
        "  distile tune data/operators/conv3x3_256.json --masks masks.npy -k 6 --trials 300 -o my_plan.json\n"
        "  distile tune my_operator.json --masks blob:0.1:1 blob:0.3:2 blob:0.6:3 --device my_cpu.json \\\n"
        "      --held-out blob:0.2:9 --seconds 540 -o my_plan.json\n"
        "  distile tune my_operator.json --masks masks.npy --also avx2 -o my_avx512.json   # writes my_avx2.json too\n"
        "  distile tune --all data/tuning.json --hours 4 -o my_plans\n"
        "  distile tune --all data/tuning.json --only '^conv1x1.*_avx512$' --minutes 30 -o my_plans\n"
        "  distile tune my_operator.json --masks masks.npy --backend cuda --device h200.json --folder batch -o "
        "my_plan.json\n"
        "  distile tune my_operator.json --masks masks.npy --backend cuda --device h200.json --math tf32 -o "
        "my_tf32.json");
    command->callback([options, op] {
        require_one_or_list(options->all, *op);
        if (options->all.list.empty()) {
            tune(*options);
        } else {
            tune_all(*options);
        }
    });
}

}  // namespace distile
