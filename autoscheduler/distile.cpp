/** \file
 * The distile command.
 */
#include "plan.h"
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fmt/core.h>

namespace {

using namespace distile;

struct EmitOptions {
    std::string op, plan, symbol, source, header;
};

void emit(const EmitOptions &options) {
    const Plan plan = read_plan(options.plan);
    const Operator op = read_operator(options.op);
    if (!(op == plan.op)) {
        throw FileError("the plan '" + options.plan + "' was made for the operator '" + plan.op.name + "' (" +
                        plan.op.summary() + "), not for '" + op.name + "' (" + op.summary() + ")");
    }
    write_file(options.source, emit_polykernel(plan, options.symbol));
    write_file(options.header, fmt::format("/* {0}: {1}. */\n"
                                           "#ifndef DISTILE_POLYKERNEL_{2}\n#define DISTILE_POLYKERNEL_{2}\n\n"
                                           "#include <distile/distile.h>\n\n"
                                           "#ifdef __cplusplus\nextern \"C\" {{\n#endif\n\n"
                                           "extern const distile_polykernel {2};\n\n"
                                           "#ifdef __cplusplus\n}}\n#endif\n\n#endif\n",
                                           plan.name, op.summary(), options.symbol));
}

}  // namespace

int main(int argc, char **argv) {
    CLI::App app("distile: masked operators that compute only where a mask says so");
    app.require_subcommand(1);
    EmitOptions emit_options;
    CLI::App *emit_command = app.add_subcommand("emit", "Write the C descriptor of a plan (used by the build)");
    emit_command->add_option("--operator", emit_options.op, "Operator file")->required();
    emit_command->add_option("--plan", emit_options.plan, "Plan file")->required();
    emit_command->add_option("--symbol", emit_options.symbol, "C name of the PolyKernel")->required();
    emit_command->add_option("--source", emit_options.source, "C file to write")->required();
    emit_command->add_option("--header", emit_options.header, "Header to write")->required();
    emit_command->callback([&] { emit(emit_options); });
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        return app.exit(error);
    } catch (const std::exception &error) {
        std::fputs(fmt::format("distile: error: {}.\n", error.what()).c_str(), stderr);
        return 1;
    }
    return 0;
}
