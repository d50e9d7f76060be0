/** \file
 * What distile_add_polykernel() runs: builds a PolyKernel from its operator and plans. Apart from the distile command,
 * so that a change of that builds no kernel again.
 */
#include "compile.h"
#include "tools.h"
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>

namespace {

using namespace distile;

/** Compilers at once: $DISTILE_JOBS, or one a core. */
int jobs() {
    const char *variable = std::getenv("DISTILE_JOBS");
    const int jobs = variable ? std::atoi(variable) : 0;
    return jobs > 0 ? jobs : cores_of_machine();
}

int run(int argc, char **argv) {
    CLI::App app("distile_builder: builds PolyKernels; used by distile_add_polykernel");
    app.require_subcommand(1);

    BuildOptions build_options;
    bool no_portable = false;
    CLI::App *build = app.add_subcommand("build", "Build the object and the header of a PolyKernel");
    build->add_option("--operator", build_options.op, "Operator file")->required();
    build->add_option("--plan", build_options.plans, "Plan files, the most demanding first")->required();
    build->add_flag("--no-portable", no_portable, "Add no plan for every CPU");
    build->add_option("--symbol", build_options.symbol, "C name of the PolyKernel")->required();
    build->add_option("--object", build_options.object, "Object to write")->required();
    build->add_option("--header", build_options.header, "Header to write")->required();
    build->add_option("--depfile", build_options.depfile, "File to write: what the object depends on");
    build->add_option("--folder", build_options.folder, "Folder for what is made on the way; it is emptied")
        ->required();
    build->add_option("--linker", build_options.linker, "GNU ld")->capture_default_str();
    build->add_option("--objcopy", build_options.objcopy, "GNU objcopy")->capture_default_str();
    build->add_option("--slots", build_options.slots,
                      "Folder by which builds that run at once keep to $DISTILE_JOBS compilers in all, or one a core");
    build->callback([&] {
        build_options.portable = !no_portable;
        build_options.jobs = jobs();
        build_polykernel(build_options);
    });

    std::string plan, what, folder;
    CLI::App *emit = app.add_subcommand("emit", "Write what a generator emits of every variant of a plan");
    emit->add_option("what", what, "As Halide names it, for instance device_code")->required();
    emit->add_option("plan", plan, "Plan file")->required();
    emit->add_option("-o,--out", folder, "Folder to write to")->required();
    emit->callback([&] { emit_of_variants(plan, what, folder, jobs()); });

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
