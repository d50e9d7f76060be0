#include "autoscheduler/command/plan_search.h"
#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/command/commands.h"
#include "autoscheduler/compile/tools.h"
#include "autoscheduler/search/objective.h"
#include "autoscheduler/search/report.h"
#include "plans/nonzeros.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>

namespace distile {

namespace {

/** Letters, digits and underscores of a file's name: the name of the plan in it. */
std::string name_of(const std::string &path, const Operator &op) {
    const std::string stem = std::filesystem::path(path).stem().string();
    const bool legal =
        !stem.empty() && (stem[0] < '0' || stem[0] > '9') &&
        stem.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string::npos;
    return legal ? stem : op.name + "_tuned";
}

/** The share of its cost that a solution would lack without the later half of what was measured; 1 if there would be
 * none. */
double gained_by_later_half(const std::vector<Measurement> &measured, const Solution &solution, const MaskSet &masks,
                            int k) {
    const std::vector<Measurement> earlier(measured.begin(),
                                           measured.begin() + static_cast<std::ptrdiff_t>(measured.size() / 2));
    if (!best_dense(earlier) || sparse_measurements(earlier).empty()) {
        return 1;
    }
    const Solution before = solve(earlier, masks, k);
    // Costs are relative to the dense candidate, which may have become faster.
    const auto time = [](const Solution &each) { return each.costs.back() * each.dense->times.back().us; };
    return std::max(0.0, 1 - time(solution) / time(before));
}

}  // namespace

PlanSearch::PlanSearch(PlanSearchOptions options) : options_(std::move(options)), session_(options_) {
    prefix_ = options_.one_of_several ? level_of(session_.code.target) + ": " : "";
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
            const std::string problem =
                variant.language == language_of(session_.op, session_.code)
                    ? session_.space().why_illegal(variant.theta, session_.workload.problem)
                    : std::string("its code is ") + (variant.language == Language::Halide ? "" : "not ") +
                          "from Halide, unlike that of the schedules that are searched (--math and --target decide)";
            if (!problem.empty()) {
                throw FileError("the plan '" + options_.include + "', variant \"" + variant.name + "\": " + problem);
            }
            options_.search.include.emplace_back(variant.theta, variant.dense);
        }
    }
}

void PlanSearch::check_machine() const {
    if (options_.folder.empty()) {
        session_.check_machine(options_);
    }
}

void PlanSearch::include(const std::vector<Theta> &schedules, bool dense) {
    for (const Theta &theta : schedules) {
        options_.search.include.emplace_back(theta, dense);
    }
}

void PlanSearch::include(const Plan &shipped) {
    for (const PlanVariant &variant : shipped.variants) {
        if (variant.layout.empty() && variant.language == language_of(session_.op, session_.code)) {
            include({variant.theta}, variant.dense);
        }
    }
}

void PlanSearch::learn_from(const std::vector<std::string> &logs) {
    for (const std::string &path : logs) {
        const LogHeader header = read_search_log(path).header;
        if (header.backend == session_.device.backend && header.knobs == knob_names(session_.space())) {
            options_.warm.push_back(path);
        }
    }
}

Pool PlanSearch::pool(bool dense) const {
    if (!options_.only_included) {
        return session_.pool(!options_.no_bound, dense);
    }
    std::vector<Theta> included;
    for (const auto &[theta, is_dense] : options_.search.include) {
        if (is_dense == dense) {
            included.push_back(theta);
        }
    }
    return {session_.space(), included};
}

void PlanSearch::open_log() {
    log_ = std::make_unique<SearchLog>(options_.log, session_.header(options_), options_.again);
    if (!log_->warning().empty()) {
        warn(log_->warning());
    }
}

Ending PlanSearch::search(double seconds) {
    const Stopwatch watch(seconds);
    ProgressLine line(options_.quiet);
    std::vector<Measurement> measured = log_->measured();
    const double before_s = measured.empty() ? 0 : measured.back().elapsed_s;
    const auto show = [&](const std::string &what) {
        const Measurement *dense = best_dense(measured);
        line.show(fmt::format("{}{} of {} trials{}: {}", options_.label ? options_.label() : prefix_, measured.size(),
                              options_.search.trials,
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
    if (options_.only_included) {
        options_.search.trials = static_cast<int>(options_.search.include.size());
    }
    if (static_cast<int>(measured.size()) >= options_.search.trials) {
        return Ending::TrialsSpent;
    }
    folder.learn_reference(measured);
    DeviceMeasurer device(session_.batch_setup(options_), jobs, hooks, measured);
    Measurer &measurer = options_.folder.empty() ? static_cast<Measurer &>(device) : folder;
    show("ranking the space by the bound");
    const Pool sparse = pool(false), dense = pool(true);
    const std::unique_ptr<CostModel> sparse_model = session_.model(options_, false),
                                     dense_model = session_.model(options_, true);
    SearchOptions search_options = options_.search;
    set_strategy(find_strategy(options_.strategy), sparse, dense, search_options);
    Search search(sparse, dense, session_.masks, *sparse_model, *dense_model, measurer, search_options);
    const bool finished = search.run(measured, record, hooks.stop);
    if (const auto *learned = dynamic_cast<const LearnedModel *>(sparse_model.get())) {
        learned->save(options_.log + ".model.json");
    }
    if (Interrupts::seen() && !folder.waiting()) {
        if (!options_.one_of_list) {
            std::fputs(
                fmt::format("distile: stopped. The {} measurements so far are kept in {}: run the same command again "
                            "to continue.\n",
                            measured.size(), options_.log)
                    .c_str(),
                stderr);
        }
        throw CLI::RuntimeError(130);
    }
    return folder.waiting()                                              ? Ending::Waiting
           : !finished                                                   ? Ending::SecondsSpent
           : static_cast<int>(measured.size()) >= options_.search.trials ? Ending::TrialsSpent
                                                                         : Ending::NothingLeft;
}

void PlanSearch::finish(Ending ending, double seconds) {
    const std::vector<Measurement> measured = without_drift(log_->measured());
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
    if (!options_.quiet && !options_.only_included && !options_.one_of_list) {
        std::fputs(fmt::format("distile: {}{}.\n", prefix_, why).c_str(), stderr);
    }
    const Solution solution = solve(measured, session_.masks, options_.search.k);
    const auto rounded = [](double value) { return std::round(value * 1e4) / 1e4; };
    costs_["trials"] = measured.size();
    costs_["dense_us"] = rounded(solution.dense->times.back().us);
    costs_["cost"] = rounded(solution.costs.back());
    costs_["cost_of_all"] = rounded(solution.oracle);
    costs_["gained"] = rounded(gained_by_later_half(measured, solution, session_.masks, options_.search.k));
    if (held_out_) {
        costs_["held_out_cost"] = rounded(costs_on(solution, *held_out_).back());
        costs_["held_out_cost_of_all"] = rounded(oracle_cost(measured, *held_out_));
    }
    if (solution.members.size() == 1 && !(solution.costs[1] < solution.costs[0])) {
        warn(fmt::format("on these masks no masked schedule is faster than the dense one; the plan '{}' holds the "
                         "nearest",
                         options_.plan));
    }
    const auto is_doubtful = [](const Measurement &measurement) { return !measurement.doubt.empty(); };
    const auto doubtful = std::find_if(measured.begin(), measured.end(), is_doubtful);
    if (doubtful != measured.end()) {
        doubt_ = doubtful->doubt;
    }
    if (doubtful != measured.end() && !options_.one_of_list) {
        warn(fmt::format("the times of {} of {} schedules for '{}' are doubtful, of one because {}; when nothing else "
                         "runs, the same command with --again measures them again",
                         std::count_if(measured.begin(), measured.end(), is_doubtful), measured.size(), options_.plan,
                         doubt_));
    }
    Plan plan = plan_of(session_, solution, name_of(options_.plan, session_.op));
    plan.doubt = doubt_;
    write_file(options_.plan, format_json(to_json(plan)));
    has_plan_ = true;
}

nlohmann::json PlanSearch::report() const {
    nlohmann::json report = make_report({log_->header(), without_drift(log_->measured()), ""}, session_.masks,
                                        held_out_ ? &*held_out_ : nullptr, options_.search.k);
    if (!doubt_.empty()) {
        report["doubt"] = doubt_;
    }
    return report;
}

PlanToMake plan_to_make(const Operator &op, const DeviceProfile &device, const CodeChoice &code) {
    const Backend &backend = get_backend(device.backend);
    for (const PlannedCode &planned : planned_codes(op, backend, &backend != &cpu_backend())) {
        if (planned.code.target == code.target && planned.code.math == code.math) {
            return {planned.name, shipped_plan(folder_of_shipped_plans(), op, planned)};
        }
    }
    return {op.name + "_" + level_of(code.target), {}};
}

int expected_gain(const ListedOperator &listed, const std::optional<ChosenPlan> &shipped, const DeviceProfile &device) {
    constexpr int most_rows = 1000;
    const int unknown = !shipped ? 2 : shipped->plan.profiled_device != device.name ? 1 : 0;
    return unknown * most_rows + std::min(listed.rows, most_rows - 1);
}

std::string costs_in_words(const nlohmann::json &costs) {
    return fmt::format("1/eta {:.3f}", costs.at("cost").get<double>()) +
           (costs.contains("held_out_cost")
                ? fmt::format(", {:.3f} on held-out masks", costs.at("held_out_cost").get<double>())
                : "");
}

void add_code_for_all_weights(const PlanSearch &search) {
    constexpr size_t masked_trials = 8, dense_trials = 4;
    PlanSearchOptions options = search.options();
    const Language language = language_of(search.session().op, search.session().code);
    if (options.all_weights || !options.folder.empty() || !search.has_plan() ||
        (language != Language::Nonzeros && language != Language::Bitmap && language != Language::TwoFour)) {
        return;
    }
    const std::filesystem::path path = options.plan;
    options.all_weights = true;
    options.only_included = true;
    options.plan = path.parent_path() / (path.stem().string() + "_all_weights.json");
    options.log.clear();
    options.include.clear();
    options.search.include.clear();
    PlanSearch all(options);
    all.include(best_by_bound(all.session().workload, {.3, .1, .03, .6}, masked_trials), false);
    all.include(best_by_bound(all.session().workload, {1}, dense_trials), true);
    all.open_log();
    all.finish(all.search(0), 0);
    if (!all.has_plan()) {
        throw FileError(all.complaint());
    }
    Plan plan = read_plan(search.options().plan);
    add_variants(plan, read_plan(options.plan), all_weights_prefix);
    write_file(search.options().plan, format_json(to_json(plan)));
    std::filesystem::remove(options.plan);
}

}  // namespace distile
