#include "commands.h"
#include "portable.h"
#include "report.h"
#include "search_session.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

namespace distile {

namespace {

/** The levels of CPUs that --also takes, the most demanding first. */
constexpr std::array<const char *, 2> lesser_levels = {"avx2", "x86_64"};

struct TuneOptions : SessionOptions {
    std::string plan, log, folder, include;
    std::vector<std::string> also;
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

/** The level of the CPUs that a target is for: "avx512". */
std::string level_of(const std::string &target) {
    const std::string generic = generic_device_of(target);
    return generic.substr(generic.find('_') + 1);
}

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

enum class Ending { TrialsSpent, NothingLeft, SecondsSpent, Interrupted, Waiting };

/** The search for one plan. */
class PlanSearch {
public:
    /** Throws FileError where its options cannot be used, before anything is written. */
    explicit PlanSearch(TuneOptions given) : options_(std::move(given)), session_(options_) {
        prefix_ = options_.also.empty() ? "" : level_of(session_.target) + ": ";
        if (options_.search.counts == 0) {
            options_.search.counts = get_backend(session_.device.backend).tile_counts;
        }
        if (options_.log.empty()) {
            options_.log = std::filesystem::path(options_.plan).replace_extension(".log").string();
        }
        if (std::filesystem::weakly_canonical(options_.log) == std::filesystem::weakly_canonical(options_.plan)) {
            throw FileError("the plan and the log would be one file, '" + options_.plan +
                            "': name another with -o or --log");
        }
        if (!options_.held_out.empty()) {
            held_out_ = read_mask_set(options_.held_out, session_.op);
        }
        if (!options_.include.empty()) {
            for (const PlanVariant &variant : read_plan(options_.include).variants) {
                const std::string problem = session_.space().why_illegal(variant.theta, session_.workload.problem);
                if (!problem.empty()) {
                    throw FileError("the plan '" + options_.include + "', variant \"" + variant.name +
                                    "\": " + problem);
                }
                options_.search.include.emplace_back(variant.theta, variant.dense);
            }
        }
    }

    /** Throws std::exception where this machine cannot measure, and no other one will. */
    void check_machine() const {
        if (options_.folder.empty()) {
            session_.check_machine(options_);
        }
    }
    void open_log() {
        log_ = std::make_unique<SearchLog>(options_.log, session_.header(options_));
        if (!log_->warning().empty()) {
            warn(log_->warning());
        }
    }

    const TuneOptions &options() const {
        return options_;
    }
    const Session &session() const {
        return session_;
    }
    const SearchLog &log() const {
        return *log_;
    }
    /** "" while the search is not over, or it has what a plan needs; otherwise what is missing and what to do. */
    const std::string &complaint() const {
        return complaint_;
    }
    bool has_plan() const {
        return has_plan_;
    }

    /** Measures until the budget of trials is spent, it is stopped, or the next trials wait to be measured elsewhere.
     */
    Ending search(double seconds);
    /** Writes the plan, unless something is missing. */
    void finish(Ending ending, double seconds);
    nlohmann::json report() const {
        return make_report({log_->header(), log_->measured(), ""}, session_.masks, held_out_ ? &*held_out_ : nullptr,
                           options_.search.k);
    }

private:
    TuneOptions options_;
    Session session_;
    std::optional<MaskSet> held_out_;
    std::unique_ptr<SearchLog> log_;
    std::string prefix_;  ///< Tells the searches of one command apart.
    std::string complaint_;
    bool has_plan_ = false;
};

Ending PlanSearch::search(double seconds) {
    const Stopwatch watch(seconds);
    ProgressLine line(options_.quiet);
    std::vector<Measurement> measured = log_->measured();
    const double before_s = measured.empty() ? 0 : measured.back().elapsed_s;
    const auto show = [&](const std::string &what) {
        const Measurement *dense = best_dense(measured);
        line.show(fmt::format("{}{} of {} trials{}: {}", prefix_, measured.size(), options_.search.trials,
                              dense ? fmt::format(", dense {:.0f} us", dense->times.back().us) : "", what),
                  std::min(1.0, static_cast<double>(measured.size()) / options_.search.trials));
    };
    const auto record = [&](Measurement measurement) {
        measurement.elapsed_s = before_s + watch.elapsed();
        log_->append(measurement);
        show("measuring");
    };
    BatchHooks hooks;
    hooks.stop = [&] { return watch.stop(); };
    hooks.progress = [&](const std::string &what, int) { show(what); };
    const int jobs = options_.parallel_jobs();
    FolderMeasurer folder(options_.folder, session_.batch_setup(options_), jobs, hooks);
    if (!options_.folder.empty()) {
        folder.collect(log_->measured(), [&](const Measurement &measurement) {
            measured.push_back(measurement);
            record(measurement);
        });
    }
    if (static_cast<int>(measured.size()) >= options_.search.trials) {
        return Ending::TrialsSpent;
    }
    folder.learn_reference(measured);
    DeviceMeasurer device(session_.batch_setup(options_), jobs, hooks, measured);
    Measurer &measurer = options_.folder.empty() ? static_cast<Measurer &>(device) : folder;
    show("ranking the space by the bound");
    const Pool sparse = session_.pool(!options_.no_bound, false), dense = session_.pool(!options_.no_bound, true);
    const std::unique_ptr<CostModel> sparse_model = session_.model(options_, false),
                                     dense_model = session_.model(options_, true);
    Search search(sparse, dense, session_.masks, *sparse_model, *dense_model, measurer, options_.search);
    const bool finished = search.run(measured, record, hooks.stop);
    if (const auto *learned = dynamic_cast<const LearnedModel *>(sparse_model.get())) {
        learned->save(options_.log + ".model.json");
    }
    return folder.waiting()                                              ? Ending::Waiting
           : Interrupts::seen()                                          ? Ending::Interrupted
           : !finished                                                   ? Ending::SecondsSpent
           : static_cast<int>(measured.size()) >= options_.search.trials ? Ending::TrialsSpent
                                                                         : Ending::NothingLeft;
}

void PlanSearch::finish(Ending ending, double seconds) {
    const std::vector<Measurement> &measured = log_->measured();
    const bool has_dense = best_dense(measured) != nullptr, has_sparse = !sparse_measurements(measured).empty();
    const bool enough = has_dense && has_sparse;
    std::string why;
    switch (ending) {
    case Ending::SecondsSpent:
        why = fmt::format("the {:.{}f} seconds are spent after {} of {} trials: run the same command again to continue",
                          seconds, seconds < 10 ? 1 : 0, measured.size(), options_.search.trials);
        break;
    case Ending::TrialsSpent:
        why = fmt::format("the {} trials are spent: the same command with more --trials continues",
                          options_.search.trials);
        break;
    default:
        why = fmt::format("nothing is left to measure after {} of {} trials", measured.size(), options_.search.trials);
    }
    if (!enough) {
        const std::string missing = !has_dense && !has_sparse ? "no dense schedule and no masked one is"
                                    : !has_dense              ? "no dense schedule is"
                                                              : "no masked schedule is";
        const auto failed = std::find_if(measured.rbegin(), measured.rend(),
                                         [](const Measurement &measurement) { return !measurement.ok(); });
        complaint_ = fmt::format("no plan is written to '{}': {} measured with success; {}{}", options_.plan, missing,
                                 why, failed == measured.rend() ? "" : ". The last that failed: " + failed->message);
        return;
    }
    if (!options_.quiet) {
        std::fputs(fmt::format("distile: {}{}.\n", prefix_, why).c_str(), stderr);
    }
    const Solution solution = solve(measured, session_.masks, options_.search.k);
    if (solution.members.size() == 1 && !(solution.costs[1] < solution.costs[0])) {
        warn(fmt::format("on these masks no masked schedule is faster than the dense one; the plan '{}' holds the "
                         "nearest",
                         options_.plan));
    }
    write_file(options_.plan, format_json(to_json(plan_of(session_, solution, name_of(options_.plan, session_.op)))));
    has_plan_ = true;
}

/** What CPUs that cannot run the first plan take; "" if there are none. */
std::string describe_others(const std::vector<std::unique_ptr<PlanSearch>> &searches) {
    std::string level = level_of(searches.front()->session().target), text, paths;
    if (searches.front()->session().device.backend != portable_backend().name) {
        return "";
    }
    const std::string lowest = "x86_64";
    for (const auto &search : searches) {
        if (search->has_plan()) {
            if (search != searches.front()) {
                text += fmt::format("{} without {} takes {}", text.empty() ? "A CPU" : ", one", level,
                                    search->options().plan);
            }
            level = level_of(search->session().target);
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
TuneOptions for_level(const PlanSearch &main, const std::string &level) {
    TuneOptions options = main.options();
    const std::string own = level_of(main.session().target);
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
    std::vector<std::unique_ptr<PlanSearch>> searches;
    searches.push_back(std::make_unique<PlanSearch>(options));
    // The most demanding first, as in a build.
    for (const char *level : lesser_levels) {
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
        const size_t trials = search.log().measured().size();
        if (ending == Ending::Waiting) {
            say_how_to_measure(search.options().folder, trials, search.options().log);
            continue;
        }
        if (ending == Ending::Interrupted) {
            std::fputs(fmt::format("distile: stopped. The {} measurements so far are kept in {}: run the same command "
                                   "again to continue.\n",
                                   trials, search.options().log)
                           .c_str(),
                       stderr);
            throw CLI::RuntimeError(130);
        }
        search.finish(ending, share);
        if (!search.has_plan()) {
            complaints += (complaints.empty() ? "" : ".\n") + search.complaint();
            continue;
        }
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
    command
        ->add_option(
            "--also", options->also,
            "Search also for CPUs with no more than these features, on this machine: avx2, x86_64. Each gets a "
            "plan beside the first, and an equal share of --seconds")
        ->check(CLI::IsMember(std::vector<std::string>(lesser_levels.begin(), lesser_levels.end())));
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
        "my_plan.json");
    command->callback([options] { tune(*options); });
}

}  // namespace distile
