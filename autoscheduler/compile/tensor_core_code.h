/** \file
 * Compiling variants for tensor cores, with nvcc or NVRTC, and embedding what it makes.
 */
#ifndef DISTILE_TENSOR_CORE_CODE_H
#define DISTILE_TENSOR_CORE_CODE_H

#include "autoscheduler/compile/process.h"
#include "plans/plan.h"
#include <string>
#include <vector>

namespace distile {

/** Writes the source of a plan's variants for tensor cores to FOLDER/NAME.cu. The command compiles it to
 * FOLDER/NAME.code, a cubin or PTX. Throws FileError for what cannot be built. */
Command tensor_core_command(const Plan &plan, const std::string &folder, const std::string &name);

/** The headers that the sources include. */
std::vector<std::string> tensor_core_headers();

/** Assembly that holds the files FOLDER/NAME.code, each followed by a 0 byte, as NAME_code up to NAME_code_end. */
std::string embed_code(const std::string &folder, const std::vector<std::string> &names);

}  // namespace distile

#endif
