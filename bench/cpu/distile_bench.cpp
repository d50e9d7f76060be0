/** \file
 * The benchmark of CPUs: masked operators against dense ones, and the single steps of a masked call.
 */
#include "bench/cpu/first_call.h"
#include "bench/cpu/runner.h"
#include "bench/harness/machine.h"
#include "bench/harness/own_objects.h"
#include "bench/harness/report.h"
#include "bench/harness/session.h"
#include "bench/harness/source_version.h"
#include "bench/peers/peer_onednn.h"
#include "reference/processor.h"
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fmt/core.h>

namespace {

using namespace distile::bench;

struct Options : SessionOptions {
    ReportOptions report;
    std::vector<std::string> times;
    MeasureOptions measure;
    int32_t threads = 0;
    std::string first_call, objects;
};

constexpr const char *examples = R"(
Row names are <operator>/<mask>/<density>/n<batch>/<keep or zero>/<bordered or plain>/<peer>[/cold, /first, /avx2 or
/portable], type/<type>/<operator>/<mask>/<density>/n<batch>[/avx2], mask/<size>/<mask>/<density>/pack+counts+list,
select/<operator>, pool/<tasks>x<time of a task>, dispatch/<operator>, algebra/<size>/<mask>/<density>/<function>,
difference/<size>, layout/<from_nchw or to_nchw>/<size>, planner/<layers>x<operator>/<mask>/<density> and, with --objects,
own/<operator>/<mask>/<density>/<bordered or plain>, which measures all ways to a plan of the operator in turns.

Examples:
  distile_bench --out results.json                   measure all rows
  distile_bench --out results.json --resume          go on where a run was stopped
  distile_bench --filter '^op3/blob/.*/keep/'        some rows only, printed and not kept
  distile_bench --list --filter cold                 names of rows
  distile_bench --summary results.json               Markdown tables
  distile_bench --objects folder --filter '^own/'    OPERATOR.WAY.so of `distile compile`, beside its plan OPERATOR.WAY.json
)";

Json make_header(const Options &options, int32_t threads) {
    return {{"date", utc_now()},
            {"backend", "cpu"},
            {"device", distile::cpu_name()},
            {"system", system_name()},
            {"threads", threads},
            {"last_level_cache_bytes", last_level_cache_bytes()},
            {"compiler", DISTILE_BENCH_COMPILER},
            {"versions",
             {{"distile", fmt::format("{}.{}.{}", DISTILE_VERSION_MAJOR, DISTILE_VERSION_MINOR, DISTILE_VERSION_PATCH)},
              {"source", source_version()},
              {"Halide", DISTILE_BENCH_HALIDE},
              {"oneDNN", onednn_description()}}},
            {"rounds_at_least", options.measure.rounds},
            {"seconds_at_least", options.measure.seconds},
            {"time_tables", options.times},
            {"about",
             "times are medians in microseconds; masked times start at the byte mask; eta = t_peer_us * density / "
             "t_masked_us; errors are the largest difference to plain loops, on active pixels for ours, by the "
             "largest value"}};
}

/** The numbers of a row that was measured. */
std::string describe(const Json &row) {
    if (row.at("kind") == "own") {
        std::string text = fmt::format("peer {:9.1f} us", row.at("t_peer_us").get<double>());
        for (const Json &way : row.at("ways")) {
            text += fmt::format("  {}: eta {:5.3f}", way.at("way").get<std::string>(), way.at("eta").get<double>());
        }
        return text;
    }
    if (row.at("kind") != "convolution") {
        std::string text = fmt::format("{:9.3f} us", row.at("t_us").get<double>());
        if (row.contains("ratio")) {
            text += fmt::format("  {:5.2f} x {}", row.at("ratio").get<double>(), row.at("of").get<std::string>());
        }
        if (row.contains("met")) {
            text += row.at("met") == true ? "  met" : "  MISSED";
        }
        if (row.contains("fastest")) {
            text += fmt::format("  fastest: {}", row.at("fastest").get<std::string>());
        }
        return text;
    }
    return fmt::format("masked {:9.1f} us  peer {:9.1f} us  speedup {:6.2f}  eta {:5.3f}  {}",
                       row.at("t_masked_us").get<double>(), row.at("t_peer_us").get<double>(),
                       row.at("speedup").get<double>(), row.at("eta").get<double>(),
                       row.at("variant").get<std::string>());
}

int measure(const Options &options, const std::shared_ptr<const OwnObjects> &own) {
    // Before any library starts threads.
    const int32_t threads = distile::restrict_to_cores(options.threads);
    Runner runner({threads, options.measure, DISTILE_BENCH_OPERATORS, options.rows, options.times, own});
    return measure_rows(
        options, make_header(options, threads), [&](const Row &row, Json &result) { runner.run(row, result); },
        describe);
}

/** The work of the process of a first call: prints its measurements. */
int measure_first(const Options &options) {
    RunnerOptions runner;
    runner.threads = distile::restrict_to_cores(options.threads);
    runner.operators_path = DISTILE_BENCH_OPERATORS;
    runner.times = options.times;
    const Row row = read_rows(options.rows, options.filter).front();
    Json measured;
    try {
        measured = measure_first_call(std::get<ConvolutionRow>(row.what),
                                      options.first_call == "ours" ? Side::Ours : Side::Peer, runner);
    } catch (const PeerMissing &error) {
        measured["missing"] = error.what();
    }
    fmt::print("{}\n", measured.dump());
    return 0;
}

int run(Options options) {
    if (!options.first_call.empty()) {
        return measure_first(options);
    }
    if (!options.report.results.empty()) {
        report(options.report);
        return 0;
    }
    std::shared_ptr<const OwnObjects> own;
    if (!options.objects.empty()) {
        own = std::make_shared<const OwnObjects>(options.objects, distile::cpu_backend());
        options.own = own->operators();
    }
    if (options.list) {
        list_rows(options);
        return 0;
    }
    return measure(options, own);
}

}  // namespace

int main(int argc, char **argv) {
    try {
        Options options;
        options.rows = DISTILE_BENCH_ROWS;
        CLI::App app(
            "Measures masked operators on a CPU against dense ones of oneDNN, in turns, from the byte mask on.");
        app.footer(examples);
        add_session_options(app, options);
        app.add_option("--rounds", options.measure.rounds, "Calls of each side in a row, at least")
            ->check(CLI::Range(1, 1000000))
            ->capture_default_str();
        app.add_option("--seconds", options.measure.seconds, "Time for a row, at least")
            ->check(CLI::Range(0.0, 3600.0))
            ->capture_default_str();
        app.add_option("--threads", options.threads, "Cores for both sides; 0: all that this process may use")
            ->check(CLI::Range(0, 4096))
            ->capture_default_str();
        app.add_option("--times", options.times, "Time tables of `distile profile`; without them, those built in");
        app.add_option(
            "--objects", options.objects,
            "Folder of OPERATOR.WAY.so with their plans OPERATOR.WAY.json: adds the rows of these operators");
        // For the processes that this one starts.
        app.add_option("--first-call", options.first_call)->check(CLI::IsMember({"ours", "peer"}))->group("");
        add_report_options(app, options.report);
        CLI11_PARSE(app, argc, argv);
        return run(options);
    } catch (const std::exception &error) {
        fmt::print(stderr, "distile_bench: error: {}\n", error.what());
        return 1;
    }
}
