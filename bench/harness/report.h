/** \file
 * What the benchmark programs make of results that are there: tables, documents and a figure.
 */
#ifndef DISTILE_BENCH_REPORT_H
#define DISTILE_BENCH_REPORT_H

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace distile::bench {

struct ReportOptions {
    std::vector<std::string> results;
    std::string into, figure;
};

void add_report_options(CLI::App &app, ReportOptions &options);

/** Prints tables of all results, or puts them into the document between the lines `<!-- begin NAME PART -->` and
 * `<!-- end -->`, NAME being a file of results without its folder and PART `goals` or `rows`. Throws
 * std::runtime_error. */
void report(const ReportOptions &options);

}  // namespace distile::bench

#endif
