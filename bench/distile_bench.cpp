/** \file
 * The benchmark: masked convolutions against dense ones, and the single steps of a masked call.
 */
#include "machine.h"
#include "peer_onednn.h"
#include "runner.h"
#include "summary.h"
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fmt/core.h>
#include <regex>

namespace {

using namespace distile::bench;

struct Options {
    std::string filter = ".*", out, rows = DISTILE_BENCH_ROWS, summary;
    std::vector<std::string> times;
    MeasureOptions measure;
    int32_t threads = 0;
    bool list = false, quiet = false, resume = false;
};

constexpr const char *examples = R"(
Row names are <operator>/<mask>/<density>/n<batch>/<keep or zero>/<bordered or plain>/<peer>[/cold],
mask/<size>/<mask>/<density>/pack+counts+list, select/<operator> and pool/<tasks>x<time of a task>.

Examples:
  distile_bench --out results.json                   measure all rows
  distile_bench --out results.json --resume          go on where a run was stopped
  distile_bench --filter '^op3/blob/.*/keep/'        some rows only, printed and not kept
  distile_bench --list --filter cold                 names of rows
  distile_bench --summary results.json               Markdown tables
)";

std::vector<Row> choose_rows(const Options &options) {
    const std::regex filter = [&] {
        try {
            return std::regex(options.filter);
        } catch (const std::regex_error &error) {
            throw std::runtime_error(
                fmt::format("--filter '{}' is no regular expression: {}", options.filter, error.what()));
        }
    }();
    std::vector<Row> chosen;
    for (Row &row : read_rows(options.rows)) {
        if (std::regex_search(row.name, filter)) {
            chosen.push_back(std::move(row));
        }
    }
    if (chosen.empty()) {
        throw std::runtime_error(fmt::format("--filter '{}' matches no row; --list shows them all", options.filter));
    }
    return chosen;
}

Json make_header(const Options &options, int32_t threads) {
    return {{"date", utc_now()},
            {"device", cpu_name()},
            {"system", system_name()},
            {"threads", threads},
            {"last_level_cache_bytes", last_level_cache_bytes()},
            {"load_average_before", load_average()},
            {"compiler", DISTILE_BENCH_COMPILER},
            {"versions",
             {{"distile", fmt::format("{}.{}.{}", DISTILE_VERSION_MAJOR, DISTILE_VERSION_MINOR, DISTILE_VERSION_PATCH)},
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

/** One line for a row that was tried. */
std::string describe(const Json &row, int width) {
    std::string text = fmt::format("{:<{}}  ", row.at("row").get<std::string>(), width);
    if (row.at("status") != "measured") {
        return text + fmt::format("{}: {}", row.at("status").get<std::string>(), row.at("reason").get<std::string>());
    }
    if (row.at("kind") != "convolution") {
        text += fmt::format("{:9.3f} us", row.at("t_us").get<double>());
        if (row.contains("goal_us")) {
            text +=
                fmt::format("  goal < {} us {}", row.at("goal_us").dump(), row.at("met") == true ? "met" : "MISSED");
        }
        return text;
    }
    return text + fmt::format("masked {:9.1f} us  peer {:9.1f} us  speedup {:6.2f}  eta {:5.3f}  {}",
                              row.at("t_masked_us").get<double>(), row.at("t_peer_us").get<double>(),
                              row.at("speedup").get<double>(), row.at("eta").get<double>(),
                              row.at("variant").get<std::string>());
}

int measure(const Options &options) {
    // Before any library starts threads.
    const int32_t threads = restrict_to_cores(options.threads);
    const std::vector<Row> rows = choose_rows(options);
    int width = 0;
    for (const Row &row : rows) {
        width = std::max(width, static_cast<int>(row.name.size()));
    }

    Results results(options.out, options.resume, make_header(options, threads));
    Runner runner({threads, options.measure, DISTILE_BENCH_OPERATORS, options.times});
    size_t done = 0, skipped = 0, failed = 0, kept = 0;
    for (const Row &row : rows) {
        done++;
        if (results.is_measured(row.name)) {
            kept++;
            continue;
        }
        const Json result = runner.run(row);
        results.add(result);
        skipped += result.at("status") == "skipped";
        failed += result.at("status") == "failed";
        // What was not measured is said even to those who want it quiet.
        if (!options.quiet || result.at("status") != "measured") {
            fmt::print("[{:>{}}/{}] {}\n", done, fmt::formatted_size("{}", rows.size()), rows.size(),
                       describe(result, width));
            std::fflush(stdout);
        }
    }
    fmt::print("{} rows: {} measured, {} kept from before, {} skipped, {} failed{}\n", rows.size(),
               rows.size() - kept - skipped - failed, kept, skipped, failed,
               options.out.empty() ? "; nothing was written, since there is no --out" : ", in " + options.out);
    return failed > 0 ? 1 : 0;
}

int run(const Options &options) {
    if (!options.summary.empty()) {
        fmt::print("{}", summarise(read_results(options.summary)));
        return 0;
    }
    if (options.list) {
        for (const Row &row : choose_rows(options)) {
            fmt::print("{}\n", row.name);
        }
        return 0;
    }
    return measure(options);
}

}  // namespace

int main(int argc, char **argv) {
    try {
        Options options;
        CLI::App app("Measures masked convolutions against dense ones of oneDNN, in turns, from the byte mask on.");
        app.footer(examples);
        app.add_option("--filter", options.filter, "Regular expression on row names: which rows")
            ->capture_default_str();
        app.add_option("--out", options.out, "JSON file for the results, written after every row");
        app.add_flag("--resume", options.resume, "Keep the measured rows of --out and measure the others");
        app.add_option("--rounds", options.measure.rounds, "Calls of each side in a row, at least")
            ->check(CLI::Range(1, 1000000))
            ->capture_default_str();
        app.add_option("--seconds", options.measure.seconds, "Time for a row, at least")
            ->check(CLI::Range(0.0, 3600.0))
            ->capture_default_str();
        app.add_option("--threads", options.threads, "Cores for both sides; 0: all that this process may use")
            ->check(CLI::Range(0, 4096))
            ->capture_default_str();
        app.add_option("--times", options.times, "Time tables of `distile profile` in place of those built in");
        app.add_option("--rows", options.rows, "File that lists the rows")->capture_default_str();
        app.add_flag("--list", options.list, "Print the names of rows and measure nothing");
        app.add_flag("--quiet", options.quiet, "Print only rows that could not be measured, and the last line");
        app.add_option("--summary", options.summary, "Print a file of results as Markdown and measure nothing");
        CLI11_PARSE(app, argc, argv);
        if (options.resume && options.out.empty()) {
            throw std::runtime_error("--resume needs --out, the file to go on with");
        }
        return run(options);
    } catch (const std::exception &error) {
        fmt::print(stderr, "distile_bench: error: {}\n", error.what());
        return 1;
    }
}
