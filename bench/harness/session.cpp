#include "bench/harness/session.h"
#include "bench/harness/machine.h"
#include "bench/harness/peer_missing.h"
#include "reference/processor.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fmt/core.h>
#include <thread>

namespace distile::bench {

namespace {

/** The share of the cores that others took since this was made. */
class Disturbance {
public:
    double share() const {
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
        const double cores = static_cast<double>(usable_cores().size());
        // The system counts in ticks, and some of these are ours.
        return std::max(0.0, (seconds_of_others() - others_) / elapsed.count() / cores);
    }

private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    double others_ = seconds_of_others();
};

/** The share of the cores that others take now. The load average would also tell of a build that has just ended. */
double busy_now() {
    const Disturbance disturbance;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return disturbance.share();
}

/** Warns of a busy machine before the measurement takes minutes. */
void warn_of(double busy) {
    if (busy > fair_share_of_others) {
        fmt::print(stderr, "warning: others take {:.0f} % of the cores. Measure on an idle machine.\n", 100 * busy);
    }
}

}  // namespace

void add_session_options(CLI::App &app, SessionOptions &options) {
    app.add_option("--filter", options.filter, "Regular expression on row names: which rows")->capture_default_str();
    CLI::Option *out = app.add_option("--out", options.out, "JSON file for the results, written after every row");
    app.add_flag("--resume", options.resume, "Keep the measured rows of --out and measure the others")->needs(out);
    app.add_option("--rows", options.rows, "File that lists the rows")->capture_default_str();
    app.add_flag("--list", options.list, "Print the names of rows and measure nothing");
    app.add_flag("--quiet", options.quiet, "Print only the rows that could not be measured, and the last line");
}

void list_rows(const SessionOptions &options) {
    for (const Row &row : read_rows(options.rows, options.filter, options.own)) {
        fmt::print("{}\n", row.name);
    }
}

int measure_rows(const SessionOptions &options, Json header, const std::function<void(const Row &, Json &)> &run,
                 const std::function<std::string(const Json &)> &describe) {
    const std::vector<Row> rows = read_rows(options.rows, options.filter, options.own);
    int width = 0;
    for (const Row &row : rows) {
        width = std::max(width, static_cast<int>(row.name.size()));
    }
    header["others_busy_before"] = rounded(busy_now());
    warn_of(header["others_busy_before"]);
    Results results(options.out, options.resume, std::move(header));
    size_t done = 0, skipped = 0, failed = 0, kept = 0, disturbed = 0;
    for (const Row &row : rows) {
        done++;
        if (results.is_measured(row.name, row.version)) {
            kept++;
            continue;
        }
        Json result = {{"row", row.name}, {"status", "measured"}};
        if (!row.version.empty()) {
            result["version"] = row.version;
        }
        const Disturbance disturbance;
        try {
            run(row, result);
            result["others_busy"] = rounded(disturbance.share());
            disturbed += is_disturbed(result);
        } catch (const PeerMissing &error) {
            result["status"] = "skipped";
            result["reason"] = error.what();
        } catch (const std::exception &error) {
            result["status"] = "failed";
            result["reason"] = error.what();
        }
        results.add(result);
        const std::string status = result.at("status");
        skipped += status == "skipped";
        failed += status == "failed";
        // --quiet too reports rows that were not measured.
        if (!options.quiet || status != "measured") {
            fmt::print(
                "[{:>{}}/{}] {:<{}}  {}\n", done, fmt::formatted_size("{}", rows.size()), rows.size(), row.name, width,
                status == "measured" ? describe(result) : status + ": " + result.at("reason").get<std::string>());
            std::fflush(stdout);
        }
    }
    if (disturbed > 0) {
        fmt::print(stderr, "warning: while {} rows were measured, others took more than {:.0f} % of the cores.\n",
                   disturbed, 100 * fair_share_of_others);
    }
    fmt::print("{} rows: {} measured, {} kept from before, {} skipped, {} failed{}\n", rows.size(),
               rows.size() - kept - skipped - failed, kept, skipped, failed,
               options.out.empty() ? "; nothing was written: give a file with --out" : ", in " + options.out);
    return failed > 0 ? 1 : 0;
}

}  // namespace distile::bench
