/** \file
 * What the benchmark programs make from results: tables, pages and figures.
 */
#ifndef DISTILE_BENCH_REPORT_H
#define DISTILE_BENCH_REPORT_H

#include <filesystem>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace distile::bench {

struct ReportOptions {
    std::vector<std::string> results;
    std::string figure, break_even;
    std::filesystem::path pages;
};

void add_report_options(CLI::App &app, ReportOptions &options);

/** Prints tables of all results; or writes a page with them for each file, or draws them or their break-even densities.
 * Throws std::runtime_error. */
void report(const ReportOptions &options);

}  // namespace distile::bench

#endif
