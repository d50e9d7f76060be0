/** \file
 * The command line of a benchmark.
 */
#ifndef DISTILE_BENCH_COMMAND_LINE_H
#define DISTILE_BENCH_COMMAND_LINE_H

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

namespace distile::bench {

/** Adds where the results go (`out` and `resume` of the options), reads the command line and returns what run(options)
 * does: the exit status. Prints what it throws, and returns 1. */
template<class Options, class Run>
int run_command_line(CLI::App &app, int argc, char **argv, Options &options, const Run &run) {
    app.add_option("--out", options.out, "File of results (JSON)");
    app.add_flag("--resume", options.resume, "Keep the rows that the file has");
    CLI11_PARSE(app, argc, argv);
    try {
        return run(options);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}

}  // namespace distile::bench

#endif
