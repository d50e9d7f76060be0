/** \file
 * The distile command.
 */
#include "commands.h"
#include "process.h"
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

namespace {

using namespace distile;

int run(int argc, char **argv) {
    CLI::App app("distile: masked operators that compute only where a mask says so");
    app.require_subcommand(1);
    add_info_command(app);
    add_portable_command(app);
    add_show_command(app);
    add_calibrate_command(app);
    add_rank_command(app);
    add_tune_command(app);
    add_report_command(app);
    add_measure_command(app);
    add_experiment_command(app);
    add_profile_command(app);
    add_compile_command(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        return app.exit(error);
    }
    return 0;
}

}  // namespace

int main(int argc, char **argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "distile: error: %s.\n", printable(error.what()).c_str());
        return 1;
    }
}
