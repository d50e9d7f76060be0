/** \file
 * A run over rows: it keeps rows measured before, and writes every row as soon as it is measured.
 */
#ifndef DISTILE_BENCH_SESSION_H
#define DISTILE_BENCH_SESSION_H

#include "bench/harness/results.h"
#include "bench/harness/rows.h"
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace distile::bench {

struct SessionOptions {
    std::string filter = ".*", out, rows;
    bool list = false, quiet = false, resume = false;
    std::vector<OwnOperator> own; /**< The operators of --objects, where a program has that option. */
};

/** The options that choose rows and where results go. */
void add_session_options(CLI::App &app, SessionOptions &options);

void list_rows(const SessionOptions &options);

/** Measures the chosen rows with `run` and prints a line for each, with the numbers from `describe`. `run` adds to a
 * result that has the row's name. If it throws PeerMissing, the row is skipped; any other exception means that it
 * failed. Returns the exit status: 1 if a row failed. */
int measure_rows(const SessionOptions &options, Json header, const std::function<void(const Row &, Json &)> &run,
                 const std::function<std::string(const Json &)> &describe);

}  // namespace distile::bench

#endif
