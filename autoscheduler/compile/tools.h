/** \file
 * The programs and files that the distile command compiles plans with. They lie beside it, in the build tree as where
 * it is installed, so that both can be moved.
 */
#ifndef DISTILE_TOOLS_H
#define DISTILE_TOOLS_H

#include "plan.h"
#include "process.h"
#include <string>

namespace distile {

/** This program, wherever it is. */
std::string own_path();

/** The path of what lies beside this program. Throws FileError if it is not there. */
std::string tool(const std::string &name);

/** The C compiler that links plans: $CC with its arguments, or cc. */
std::vector<std::string> c_compiler();

/** What builds a variant of a plan that lies in a file: a generator with the plugin. It writes what `emit` names, for
 * instance "object", and logs, into a folder; `name` is that of the files,
 * and of the function unless that has another. */
Command generator_command(const Plan &plan, const PlanVariant &variant, const std::string &plan_path,
                          const std::string &emit, const std::string &folder, const std::string &name,
                          const std::string &function = "");

/** run_commands() for Halide's generators. */
void run_generators(const std::vector<Command> &commands, int jobs, const std::function<void(int)> &finished,
                    const JobSlots *slots = nullptr);

}  // namespace distile

#endif
