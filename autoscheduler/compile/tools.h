/** \file
 * The programs and files that compile plans. They lie beside the distile command, both in the build tree and where it
 * is installed, so that all can be moved together.
 */
#ifndef DISTILE_TOOLS_H
#define DISTILE_TOOLS_H

#include "autoscheduler/compile/process.h"
#include "plans/plan.h"
#include <string>

namespace distile {

/** This program, wherever it is. */
std::string program_path();

/** The folder of this program and of the files beside it. Includes of generated code are paths from there. */
std::string folder_of_tools();

/** The path of a file beside this program. Throws FileError if it is missing. */
std::string tool(const std::string &name);

/** The folder of the plans that ship: of operators that have no plan of their own, those of the same shape take them.
 */
std::string folder_of_shipped_plans();

/** The path of an object that code for a target links: in the folder $DISTILE_OBJECTS, or beside this program. Throws
 * FileError if it is missing, or for a target of another platform than this program's without that variable. */
std::string linked_object(const std::string &name, const std::string &target);

/** The C compiler that links plans: $CC, a path or the words of a shell, or cc. Throws FileError if there is no such
 * program. */
std::vector<std::string> c_compiler();

/** The CUDA compiler: $CUDACXX in the same way, or nvcc. No words: NVRTC stands for it, where there is no nvcc or
 * $CUDACXX is "nvrtc". Throws FileError if there is neither. */
std::vector<std::string> cuda_compiler();

/** The command that builds a variant from Halide: a generator with the plugin, which reads the plan in the file
 * `plan_path`. It writes the output that `emit` names, for instance "object", and a log into a folder. `name` is the
 * name of the files, and of the function unless `function` names it. Throws FileError for what cannot be built. */
Command generator_command(const Plan &plan, const PlanVariant &variant, const std::string &plan_path,
                          const std::string &emit, const std::string &folder, const std::string &name,
                          const std::string &function = "");

/** A generator or nvcc ran and failed: the fault may be the schedule's. */
class GeneratorFailed : public FileError {
public:
    using FileError::FileError;
};
/** The exit status of `distile compile` then; of all other errors it is 1. */
constexpr int generator_failed = 4;

/** run_commands() for what compiles variants. Throws GeneratorFailed, and FileError where none could run. */
void run_generators(const std::vector<Command> &commands, int jobs, const std::function<void(int)> &finished,
                    const JobSlots *slots = nullptr);

}  // namespace distile

#endif
