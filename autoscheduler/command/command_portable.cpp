#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/command/commands.h"
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

namespace distile {

namespace portable_command {
namespace {

struct Options {
    std::string op, platform = host_platform().name(), out;
};

}  // namespace
}  // namespace portable_command

void add_portable_command(CLI::App &app) {
    using namespace portable_command;
    const auto options = std::make_shared<Options>();
    CLI::App *command = app.add_subcommand(
        "portable", "Write an operator's plan for any CPU, which distile_add_polykernel adds to other plans");
    command->add_option("operator", options->op, "Operator file")->required();
    add_platform_option(*command, options->platform);
    command->add_option("-o,--out", options->out, "Plan to write (default: print it)");
    command->footer("Example:\n  distile portable data/operators/conv3x3_256.json -o portable.json");
    command->callback([options] {
        const std::string text =
            format_json(to_json(portable_plan(read_operator(options->op), get_platform(options->platform))));
        if (options->out.empty()) {
            std::fputs(text.c_str(), stdout);
        } else {
            write_file(options->out, text);
        }
    });
}

}  // namespace distile
