/** \file
 * What distile_add_polykernel() runs: builds a PolyKernel from its operator and plans. It is a program of its own, so
 * that a change of the distile command builds no kernel again.
 */
#include "autoscheduler/compile/command_line.h"
#include "autoscheduler/compile/compile.h"
#include "autoscheduler/compile/nvrtc.h"
#include "autoscheduler/compile/process.h"
#include "autoscheduler/compile/tools.h"
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <string>

namespace {

using namespace distile;

/** Compilers at once: $DISTILE_JOBS, or one a core. */
int jobs() {
    const char *variable = std::getenv("DISTILE_JOBS");
    const int jobs = variable ? std::atoi(variable) : 0;
    return jobs > 0 ? jobs : cores_of_machine();
}

void add_build_command(CLI::App &app) {
    const auto options = std::make_shared<BuildOptions>();
    CLI::App *command =
        app.add_subcommand("build", "Build the object and the header of a PolyKernel, or a shared object");
    command->add_option("--operator", options->op, "Operator file")->required();
    CLI::Option *plans = command->add_option(
        "--plan", options->plans,
        "Plan files, the most demanding first (default: plans that ship for the same shape, or that the bound makes)");
    command->add_option("--backend", options->backend, "Backend of the plans that the bound makes")
        ->capture_default_str()
        ->check(CLI::IsMember(backend_names()))
        ->excludes(plans);
    command
        ->add_flag("--tensor-cores", options->tensor_cores,
                   "Let the bound make plans for tensor cores too, where there are such kernels for the operator")
        ->excludes(plans);
    command
        ->add_option("--platform", options->platform,
                     "Architecture and operating system that the code is for, as its targets begin")
        ->capture_default_str()
        ->check(CLI::IsMember(platform_names()));
    command->add_option("--dtype", options->dtype,
                        "Build the operator and its plans in this type, without their times");
    const CLI::Option *no_portable = command->add_flag("--no-portable", "Add no plan for every CPU");
    command->add_option("--symbol", options->symbol, "C name of the PolyKernel")->required();
    CLI::Option *object = command->add_option("--object", options->object, "Object to write, with its header");
    CLI::Option *header = command->add_option("--header", options->header, "Header to write")->needs(object);
    object->needs(header);
    command->add_option("--depfile", options->depfile, "Make's rule to write: what the object depends on")
        ->needs(object);
    command->add_option("--shared", options->shared, "Shared object to write in place of an object")->excludes(object);
    command->add_option("--folder", options->folder, "Folder for intermediate files; it is emptied first")->required();
    command->add_option("--linker", options->linker, "GNU ld")->capture_default_str();
    command->add_option("--objcopy", options->objcopy, "GNU objcopy")->capture_default_str();
    command->add_option("--slots", options->slots,
                        "Folder that simultaneous builds share, to run no more than $DISTILE_JOBS compilers in all "
                        "(default: one a core)");
    command->callback([options, no_portable] {
        if (options->object.empty() && options->shared.empty()) {
            throw CLI::RequiredError("--object or --shared");
        }
        options->portable = no_portable->empty();
        options->jobs = jobs();
        try {
            build_polykernel(*options);
        } catch (const FileError &error) {
            throw FileError("distile_add_polykernel(" + options->symbol + "): " + error.what());
        }
    });
}

void add_emit_command(CLI::App &app) {
    struct Options {
        std::string plan, what, folder;
    };
    const auto options = std::make_shared<Options>();
    CLI::App *command = app.add_subcommand("emit", "Write what a generator emits for every variant of a plan");
    command->add_option("what", options->what, "Output by Halide's name, for instance device_code")->required();
    command->add_option("plan", options->plan, "Plan file")->required();
    command->add_option("-o,--out", options->folder, "Folder to write to")->required();
    command->callback([options] { emit_of_variants(options->plan, options->what, options->folder, jobs()); });
}

void add_nvrtc_command(CLI::App &app) {
    struct Options {
        std::string source, architecture, code;
    };
    const auto options = std::make_shared<Options>();
    CLI::App *command = app.add_subcommand("nvrtc", "Compile the source of kernels for tensor cores without nvcc");
    command->add_option("source", options->source, "Source file")->required();
    command->add_option("--architecture", options->architecture, "sm_90a for a cubin, compute_80 for PTX")->required();
    command->add_option("-o,--out", options->code, "File to write")->required();
    command->callback(
        [options] { compile_with_nvrtc(options->source, options->architecture, folder_of_tools(), options->code); });
}

}  // namespace

int main(int argc, char **argv) {
    return run_command_line(
        "distile_builder: builds PolyKernels; used by distile_add_polykernel and distile.build",
        [](CLI::App &app) {
            add_build_command(app);
            add_emit_command(app);
            add_nvrtc_command(app);
        },
        argc, argv);
}
