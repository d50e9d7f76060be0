#include "autoscheduler/command/commands.h"
#include "autoscheduler/command/search_session.h"
#include "autoscheduler/search/correlation.h"
#include "autoscheduler/search/report.h"
#include "plans/json_rows.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fmt/core.h>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

namespace distile {

namespace experiment_command {
namespace {

using nlohmann::json;

struct RandomOptions : SessionOptions {
    std::string log, folder;
    int points = 2000, dense_points = 8, first = 0;
    bool kept = false, quiet = false;
    double seconds = 0;
};

struct ReplayOptions {
    std::string log;
    std::vector<std::string> masks, warm;
    int k = 6, seeds = 3, per_round = 4, mini_batch = 32;
    double within = 0.05;
};

/** Measures points of the space that no model chose: the same ones for the same seed. */
void measure_random(const RandomOptions &options) {
    const Session session(options);
    if (options.folder.empty()) {
        session.check_machine(options);
    }
    SearchLog log(options.log, session.header(options));
    if (!log.warning().empty()) {
        warn(log.warning());
    }
    const Interrupts interrupts;
    const Stopwatch watch(options.seconds);
    const double before_s = log.measured().empty() ? 0 : log.measured().back().elapsed_s;
    BatchHooks hooks;
    hooks.stop = [&] { return watch.stop(); };
    ProgressLine line(options.quiet);
    const auto record = [&](Measurement measurement) {
        measurement.elapsed_s = before_s + watch.elapsed();
        log.append(measurement);
    };
    size_t done = 0, all = 0, compiled = 0;
    hooks.progress = [&](const std::string &what, int number) {
        compiled = what == "compiling" ? static_cast<size_t>(number) : 0;
        line.show(fmt::format("{} of {} points measured{}", done, all,
                              compiled > 0 ? fmt::format(", {} compiled", compiled) : ""),
                  static_cast<double>(options.folder.empty() ? done : compiled) / static_cast<double>(all));
    };
    FolderMeasurer folder(options.folder, session.batch_setup(options), options.parallel_jobs(), hooks);
    if (!options.folder.empty()) {
        folder.collect(log.measured(), record);
        folder.learn_reference(log.measured());
    }
    std::set<std::pair<Theta, bool>> known;
    for (const Measurement &measurement : log.measured()) {
        known.insert({measurement.theta, measurement.dense});
    }
    std::vector<Trial> wanted;
    for (const bool dense : {true, false}) {
        const Pool pool = session.pool(dense || options.kept, dense);
        std::vector<size_t> order(pool.size());
        std::iota(order.begin(), order.end(), size_t{0});
        std::mt19937_64 random(options.search.seed);
        const size_t count = std::min<size_t>(order.size(), dense ? options.dense_points : options.points);
        std::vector<Theta> thetas;
        if (options.first > 0) {
            CorrelationOptions ranking;
            ranking.first = options.first;
            thetas = first_of_ranking(session.workload, ranking, dense);
        }
        for (size_t i = 0; i < count; i++) {
            std::swap(order[i], order[i + random() % (order.size() - i)]);
            thetas.push_back(pool.theta(pool[order[i]]));
        }
        all += thetas.size();
        for (const Theta &theta : thetas) {
            if (!known.insert({theta, dense}).second) {
                done++;
                continue;
            }
            const std::pair<int, int> granularity = {theta.at("tile_h"), theta.at("tile_w")};
            wanted.push_back({theta, dense,
                              dense ? std::vector<int64_t>{session.masks.all_tiles(granularity)}
                                    : tile_counts(session.masks, granularity, options.search.counts)});
        }
    }
    if (!options.folder.empty() && !wanted.empty()) {
        folder.measure(wanted, record);
        if (folder.waiting()) {
            say_how_to_measure(options.folder, done, options.log);
            return;
        }
        wanted.clear();
    }
    DeviceMeasurer measurer(session.batch_setup(options), options.parallel_jobs(), hooks, log.measured());
    constexpr size_t batch = 32;
    for (size_t first = 0; first < wanted.size() && !hooks.stop(); first += batch) {
        const auto begin = wanted.begin() + static_cast<ptrdiff_t>(first);
        const auto end = wanted.begin() + static_cast<ptrdiff_t>(std::min(first + batch, wanted.size()));
        measurer.measure({begin, end}, [&](const Measurement &measurement) {
            record(measurement);
            done++;
        });
    }
    if (!options.quiet) {
        std::fputs(fmt::format("{} of {} points are measured in {}{}\n", done, all, options.log,
                               done == all ? "" : "; run the same command again to continue")
                       .c_str(),
                   stdout);
    }
    if (Interrupts::seen()) {
        throw CLI::RuntimeError(130);
    }
}

/** A log as a space that a search can be tried on. */
struct Replay {
    explicit Replay(const ReplayOptions &options)
        : k(options.k), log(read_search_log(options.log)), session(log.header, options.masks),
          best(solve(log.measured, session.masks, options.k)) {
        for (const Measurement &measurement : log.measured) {
            (measurement.dense ? dense : sparse).push_back(measurement.theta);
        }
        for (const Measurement *measurement : sparse_measurements(log.measured)) {
            working.push_back(measurement->theta);
        }
    }

    int k;
    LogContents log;
    Session session;
    Solution best;
    std::vector<Theta> dense, sparse, working;
};

SessionOptions model_options(const ReplayOptions &options, bool bound, bool model, uint64_t seed) {
    SessionOptions result;
    result.no_bound = !bound;
    result.no_model = !model;
    result.search.seed = seed;
    result.search.k = options.k;
    result.search.per_round = options.per_round;
    result.search.mini_batch = options.mini_batch;
    return result;
}

/** What the bound's pruning costs: the best of the points that it keeps against the best of all in a log. */
json pruning(const Replay &replay, const std::vector<Theta> &kept) {
    const MaskSet &masks = replay.session.masks;
    const std::set<Theta> kept_thetas(kept.begin(), kept.end());
    const Objective objective(masks, replay.best.dense->times.back().us);
    Costs best(masks.size(), std::numeric_limits<double>::infinity()), best_kept = best;
    std::vector<Measurement> measured;
    size_t others = 0;
    for (const Measurement &measurement : replay.log.measured) {
        const bool is_kept = !measurement.dense && kept_thetas.count(measurement.theta) != 0;
        if (measurement.dense || is_kept) {
            measured.push_back(measurement);
        }
        if (measurement.dense || !measurement.ok()) {
            continue;
        }
        others += is_kept ? 0 : 1;
        const Costs costs = objective.costs(measurement);
        for (size_t mask = 0; mask < costs.size(); mask++) {
            best[mask] = std::min(best[mask], costs[mask]);
            best_kept[mask] = is_kept ? std::min(best_kept[mask], costs[mask]) : best_kept[mask];
        }
    }
    double worst = 0;
    for (size_t mask = 0; mask < best.size(); mask++) {
        worst = std::max(worst, best_kept[mask] / best[mask] - 1);
    }
    return {{"kept", kept.size()},
            {"others", others},
            {"cost_of_kept", solve(measured, masks, replay.k).costs.back()},
            {"cost_of_all", replay.best.costs.back()},
            {"single_of_kept", solve(measured, masks, 1).costs.back()},
            {"single_of_all", solve(replay.log.measured, masks, 1).costs.back()},
            {"worst_mask", worst}};
}

/** Trials and seconds that searches with and without the bound and the learned model take to come near the best set of
 * everything in a log. */
json replay(const ReplayOptions &options) {
    const Replay replay(options);
    const Pool all(replay.session.space(), replay.sparse), dense(replay.session.space(), replay.dense);
    const Pool kept_of_space = replay.session.pool(true, false);
    std::vector<Theta> kept;
    for (const Theta &theta : replay.sparse) {
        if (!kept_of_space.find({theta}).empty()) {
            kept.push_back(theta);
        }
    }
    json rows = json::array();
    struct Kind {
        bool bound, model;
        Strategy strategy;
    };
    for (const auto &[bound, model, strategy] : {Kind{true, true, Strategy::Greedy},
                                                 {true, true, Strategy::Bayes},
                                                 {true, false, Strategy::Greedy},
                                                 {true, false, Strategy::Grid},
                                                 {true, false, Strategy::Random},
                                                 {false, true, Strategy::Greedy},
                                                 {false, true, Strategy::Bayes},
                                                 {false, false, Strategy::Grid},
                                                 {false, false, Strategy::Random}}) {
        const std::string name = strategy_names()[static_cast<size_t>(strategy)];
        if (bound && kept.empty()) {
            continue;
        }
        const Pool pool = bound ? Pool(replay.session.space(), kept) : all;
        std::vector<double> trials, seconds;
        json curves = json::array();
        for (int seed = 1; seed <= options.seeds; seed++) {
            SessionOptions session_options = model_options(options, bound, model, seed);
            session_options.search.trials = static_cast<int>(pool.size() + dense.size());
            session_options.strategy = name;
            set_strategy(strategy, pool, dense, session_options.search);
            const auto sparse_model = replay.session.model(session_options, false);
            const auto dense_model = replay.session.model(session_options, true);
            ReplayMeasurer measurer(replay.log.measured);
            // The dense candidates are the same for all.
            std::vector<Measurement> measured;
            std::copy_if(replay.log.measured.begin(), replay.log.measured.end(), std::back_inserter(measured),
                         [](const Measurement &measurement) { return measurement.dense; });
            for (Measurement &measurement : measured) {
                measurement.elapsed_s = 0;
            }
            const size_t given = measured.size();
            session_options.search.dense_part = 0;
            Search search(pool, dense, replay.session.masks, *sparse_model, *dense_model, measurer,
                          session_options.search);
            json curve = json::array();
            double cost = 0;
            search.run(
                measured, [](const Measurement &) {},
                [&] {
                    cost = solve(measured, replay.session.masks, options.k).costs.back();
                    curve.push_back({measured.size() - given, measured.back().elapsed_s, cost});
                    return cost <= replay.best.costs.back() * (1 + options.within);
                });
            cost = solve(measured, replay.session.masks, options.k).costs.back();
            if (cost <= replay.best.costs.back() * (1 + options.within)) {
                trials.push_back(static_cast<double>(measured.size() - given));
                seconds.push_back(measured.size() > given ? measured.back().elapsed_s : 0);
            }
            curves.push_back(curve);
        }
        const auto mean = [](const std::vector<double> &values) {
            return values.empty()
                       ? 0
                       : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
        };
        rows.push_back({{"bound", bound},
                        {"model", model},
                        {"strategy", name},
                        {"points", pool.size()},
                        {"seeds", options.seeds},
                        {"reached", trials.size()},
                        {"mean_trials", mean(trials)},
                        {"mean_seconds", mean(seconds)},
                        {"curves", curves}});
    }
    json result = {{"distile_replay", 1},      {"operator", replay.session.op.name}, {"k", options.k},
                   {"within", options.within}, {"best", replay.best.costs.back()},   {"searches", rows}};
    if (!kept.empty()) {
        result["pruning"] = pruning(replay, kept);
    }
    return result;
}

std::string describe_replay(const json &result) {
    std::string text = fmt::format(
        "{}: trials and seconds of compiling and measuring until the set of k = {} is within {:.0f} % of the best "
        "({:.4f})\n\n{:<8}{:<10}{:>8}{:>10}{:>10}{:>10}\n",
        result.at("operator").get<std::string>(), result.at("k").get<int>(), 100 * result.at("within").get<double>(),
        result.at("best").get<double>(), "bound", "strategy", "points", "reached", "trials", "seconds");
    for (const json &row : result.at("searches")) {
        const auto strategy = row.at("strategy").get<std::string>();
        const bool greedy = strategy == strategy_names().front();
        text += fmt::format("{:<8}{:<10}{:>8}{:>7}/{}{:>10.0f}{:>10.0f}\n", row.at("bound").get<bool>() ? "yes" : "no",
                            greedy && !row.at("model").get<bool>() ? "by bound" : strategy, row.at("points").get<int>(),
                            row.at("reached").get<int>(), row.at("seeds").get<int>(),
                            row.at("mean_trials").get<double>(), row.at("mean_seconds").get<double>());
    }
    if (result.contains("pruning")) {
        const json &pruning = result.at("pruning");
        text += fmt::format(
            "\nOf the {} schedules that the bound keeps the best {} cost {:.4f}, the best one {:.4f}; with {} others "
            "{:.4f} and {:.4f}. The best kept one of a mask is at most {:.1f} % slower than the best of all.\n",
            pruning.at("kept").get<size_t>(), result.at("k").get<int>(), pruning.at("cost_of_kept").get<double>(),
            pruning.at("single_of_kept").get<double>(), pruning.at("others").get<size_t>(),
            pruning.at("cost_of_all").get<double>(), pruning.at("single_of_all").get<double>(),
            100 * pruning.at("worst_mask").get<double>());
    }
    return text;
}

/** How good the first batch is that a model proposes which knows other operators only, in turns with one that knows
 * nothing. */
json transfer(const ReplayOptions &options) {
    const Replay replay(options);
    const Pool pool(replay.session.space(), replay.working), dense(replay.session.space(), replay.dense);
    const Objective objective(replay.session.masks, replay.best.dense->times.back().us);
    json rows = json::array();
    for (const bool warm : {true, false}) {
        SessionOptions session_options = model_options(options, true, true, 1);
        session_options.warm = warm ? options.warm : std::vector<std::string>{};
        session_options.search.random_part = 0;
        session_options.search.dense_part = 0;
        session_options.search.mini_batch = static_cast<int>(replay.session.masks.size());
        const auto sparse_model = replay.session.model(session_options, false);
        const auto dense_model = replay.session.model(session_options, true);
        ReplayMeasurer measurer(replay.log.measured);
        Search search(pool, dense, replay.session.masks, *sparse_model, *dense_model, measurer, session_options.search);
        std::vector<Measurement> measured = {*replay.best.dense};
        // Nothing was measured of this operator itself.
        sparse_model->fit({});
        measurer.measure(search.propose(measured),
                         [&](const Measurement &measurement) { measured.push_back(measurement); });
        // By pixel, with the most tiles that were measured.
        std::vector<double> predicted, actual, pixels;
        std::vector<std::pair<Theta, int64_t>> points;
        for (const Measurement *measurement : sparse_measurements(replay.log.measured)) {
            const MeasuredTime &time = measurement->times.back();
            points.emplace_back(measurement->theta, time.tiles);
            pixels.push_back(static_cast<double>(time.tiles) * measurement->theta.at("tile_h") *
                             measurement->theta.at("tile_w"));
            actual.push_back(time.us / pixels.back());
        }
        predicted = sparse_model->predict_us(points);
        std::transform(predicted.begin(), predicted.end(), pixels.begin(), predicted.begin(), std::divides<>());
        const double cost = solve(measured, replay.session.masks, options.k).costs.back();
        rows.push_back({{"warm", warm},
                        {"trials", measured.size() - 1},
                        {"cost", cost},
                        {"over_best", cost / replay.best.costs.back() - 1},
                        {"rank_correlation", rank_correlation(predicted, actual)}});
    }
    return {{"distile_transfer", 1},
            {"operator", replay.session.op.name},
            {"k", options.k},
            {"best", replay.best.costs.back()},
            {"models", rows}};
}

std::string describe_transfer(const json &result) {
    std::string text = fmt::format("{}: the first batch of a search; the best set of k = {} costs {:.4f}\n",
                                   result.at("operator").get<std::string>(), result.at("k").get<int>(),
                                   result.at("best").get<double>());
    for (const json &row : result.at("models")) {
        text += fmt::format("  {}: {} trials, {:.4f}, {:.1f} % over the best; rank correlation {:.3f}\n",
                            row.at("warm").get<bool>() ? "learned from other operators" : "bound alone",
                            row.at("trials").get<int>(), row.at("cost").get<double>(),
                            100 * row.at("over_best").get<double>(), row.at("rank_correlation").get<double>());
    }
    return text;
}

void print(const json &result, bool as_json, const std::string &path, const std::string &text) {
    if (!path.empty()) {
        write_file(path, format_rows(result));
    }
    std::fputs((as_json ? format_json(result) : text).c_str(), stdout);
}

struct CorrelationCommand : CorrelationOptions {
    std::vector<std::string> logs;
    std::string device, out;
    bool json = false;
};

void correlate(const CorrelationCommand &options) {
    json results = json::array();
    for (const std::string &path : options.logs) {
        LogContents log = read_search_log(path);
        if (!log.warning.empty()) {
            warn(log.warning);
        }
        if (!options.device.empty()) {
            log.header.device = device_of_option(options.device);
            if (log.header.device.backend != log.header.backend) {
                throw FileError("the log '" + path + "' is of the backend \"" + log.header.backend +
                                "\", but the device profile '" + options.device + "' is of \"" +
                                log.header.device.backend + "\"");
            }
        }
        results.push_back(make_correlation(log, options));
        results.back()["log"] = path;
    }
    const json result = {{"distile_correlation", 1}, {"logs", results}};
    print(result, options.json, options.out, describe_correlations(results));
}

CLI::App *add_replaying(CLI::App &parent, const char *name, const char *about,
                        const std::shared_ptr<ReplayOptions> &options) {
    CLI::App *command = parent.add_subcommand(name, about);
    command->add_option("log", options->log, "Log of what was measured")->required();
    command->add_option("--masks", options->masks, "Masks, as tune takes them (default: those of the log)");
    command->add_option("-k", options->k, "Variants besides the dense candidate")
        ->capture_default_str()
        ->check(CLI::Range(1, 63));
    command->add_option("--per-round", options->per_round, "Schedules for each of the k rounds of a batch")
        ->capture_default_str()
        ->check(CLI::Range(1, 4096));
    return command;
}

}  // namespace
}  // namespace experiment_command

void add_experiment_command(CLI::App &app) {
    using namespace experiment_command;
    CLI::App *command = app.add_subcommand("experiment", "Measure how well the search itself works");
    command->require_subcommand(1);

    const auto random = std::make_shared<RandomOptions>();
    CLI::App *random_command =
        command->add_subcommand("random", "Measure points of the space that are drawn at random, to judge a search by");
    add_session_options(*random_command, *random);
    random_command->add_option("--log", random->log, "Log to add to")->required();
    random_command->add_option("--points", random->points, "Sparse schedules in all")
        ->capture_default_str()
        ->check(CLI::Range(0, 1 << 24));
    random_command->add_option("--dense-points", random->dense_points, "Dense schedules, of those that the bound keeps")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 24));
    random_command
        ->add_option(
            "--first", random->first,
            "Beside them, this number from the top of the ranking, for each density of the experiment correlation")
        ->check(CLI::Range(0, 1 << 24));
    random_command->add_option("--folder", random->folder,
                               "Compile the points into this folder and end, to measure them on another machine");
    random_command->add_flag("--kept", random->kept, "Draw from what the bound keeps, in place of all legal points");
    random_command->add_option("--seconds", random->seconds,
                               "Seconds after which this run ends; run the same command again to continue");
    random_command->add_flag("-q,--quiet", random->quiet, "Print nothing but errors");
    random_command->callback([random] { measure_random(*random); });

    // Both experiments print, and write what they found.
    struct Output {
        std::string path;
        bool json = false;
    };
    const auto replay_options = std::make_shared<ReplayOptions>(), transfer_options = std::make_shared<ReplayOptions>();
    const auto replay_output = std::make_shared<Output>(), transfer_output = std::make_shared<Output>();
    CLI::App *replay_command =
        add_replaying(*command, "replay",
                      "Search again among what a log holds, with and without the bound and the model", replay_options);
    replay_command->add_option("--seeds", replay_options->seeds, "Searches of each kind")
        ->capture_default_str()
        ->check(CLI::Range(1, 1000));
    replay_command->add_option("--within", replay_options->within, "How near the best a search must come")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 10.0));
    replay_command->add_option("-o,--out", replay_output->path, "JSON file to write");
    replay_command->add_flag("--json", replay_output->json, "Print JSON");
    replay_command->callback([=] {
        const json result = replay(*replay_options);
        print(result, replay_output->json, replay_output->path, describe_replay(result));
    });

    CLI::App *transfer_command =
        add_replaying(*command, "transfer", "Judge the first batch of a search whose model knows other operators only",
                      transfer_options);
    transfer_command->add_option("--warm", transfer_options->warm, "Logs of the other operators")->required();
    transfer_command->add_option("-o,--out", transfer_output->path, "JSON file to write");
    transfer_command->add_flag("--json", transfer_output->json, "Print JSON");
    transfer_command->callback([=] {
        const json result = transfer(*transfer_options);
        print(result, transfer_output->json, transfer_output->path, describe_transfer(result));
    });
    const auto correlation = std::make_shared<CorrelationCommand>();
    CLI::App *correlation_command = command->add_subcommand(
        "correlation",
        "Judge the bound by logs: how it orders the schedules that it keeps, and the first of its ranking");
    correlation_command->add_option("log", correlation->logs, "Logs of what was measured")->required();
    correlation_command
        ->add_option("--density", correlation->densities,
                     "Parts of the pixels that are active; at 1 dense schedules are judged")
        ->delimiter(',')
        ->capture_default_str()
        ->check(CLI::Range(1e-6, 1.0));
    correlation_command
        ->add_option("--first", correlation->first, "Schedules of the ranking to compare with the best known one")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 24));
    correlation_command->add_option("--device", correlation->device,
                                    "Device profile to judge in place of the logs' own: a file, or a generic one");
    correlation_command->add_option("-o,--out", correlation->out, "JSON file to write");
    correlation_command->add_flag("--json", correlation->json, "Print JSON, with every schedule's bound and time");
    correlation_command->callback([correlation] { correlate(*correlation); });
    command->footer(
        "bench/search/run.sh repeats all experiments.\n"
        "Examples:\n"
        "  distile experiment random data/operators/conv3x3_256.json --masks masks.npy --points 2000 --log op3.log\n"
        "  distile experiment replay op3.log\n"
        "  distile experiment transfer op3.log --warm op12.log op21.log\n"
        "  distile experiment random data/operators/conv3x3_256.json --masks masks.npy --points 100 --kept --first 20 "
        "\\\n"
        "      --log op3.log\n"
        "  distile experiment correlation op3.log op12.log op21.log");
}

}  // namespace distile
