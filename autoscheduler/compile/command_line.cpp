#include "autoscheduler/compile/command_line.h"
#include "autoscheduler/compile/process.h"
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

namespace distile {

int run_command_line(const char *description, void (*add_commands)(CLI::App &app), int argc, char **argv) {
    try {
        CLI::App app(description);
        app.require_subcommand(1);
        add_commands(app);
        try {
            app.parse(argc, argv);
        } catch (const CLI::ParseError &error) {
            return app.exit(error);
        }
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "distile: error: %s.\n", printable(error.what()).c_str());
        return 1;
    }
}

}  // namespace distile
