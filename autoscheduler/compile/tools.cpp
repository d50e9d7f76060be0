#include "tools.h"
#include "buildable.h"
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>

namespace distile {

std::string own_path() {
    return std::filesystem::read_symlink("/proc/self/exe").string();
}

std::string tool(const std::string &name) {
    std::string path = (std::filesystem::path(own_path()).parent_path() / name).string();
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
        throw FileError("'" + path + "' is missing; it is needed to compile plans. Run the `distile` of a complete " +
                        "installation or build (for NVIDIA GPUs, one made with a CUDA toolkit)");
    }
    return path;
}

std::vector<std::string> c_compiler() {
    const char *variable = std::getenv("CC");
    std::istringstream words(variable ? variable : "");
    std::vector<std::string> command(std::istream_iterator<std::string>(words), {});
    return command.empty() ? std::vector<std::string>{"cc"} : command;
}

Command generator_command(const Plan &plan, const PlanVariant &variant, const std::string &plan_path,
                          const std::string &emit, const std::string &folder, const std::string &name,
                          const std::string &function) {
    check_buildable(plan, variant);
    Command command;
    command.words = {tool("distile_generators"),
                     "-g",
                     plan.op.generator,
                     "-n",
                     name,
                     "-f",
                     function.empty() ? name : function,
                     "-e",
                     emit,
                     "-o",
                     folder,
                     "-p",
                     tool("libautoschedule_polykernel.so"),
                     "target=" + plan.target + "-user_context-no_runtime",
                     "autoscheduler=PolyKernel",
                     "autoscheduler.plan=" + plan_path,
                     "autoscheduler.variant=" + variant.name,
                     "tile_h=" + std::to_string(variant.tile_h()),
                     "tile_w=" + std::to_string(variant.tile_w()),
                     "channel_block=" + std::to_string(plan.channel_block(variant))};
    for (const auto &[key, value] : plan.op.params) {
        command.words.push_back(std::string(key).append("=").append(value));
    }
    command.log = folder + "/" + name + ".log";
    return command;
}

void run_generators(const std::vector<Command> &commands, int jobs, const std::function<void(int)> &finished,
                    const JobSlots *slots) {
    try {
        run_commands(commands, jobs, finished, slots);
    } catch (const FileError &error) {
        const std::string message = error.what();
        if (message.find("error while loading shared libraries: libHalide") == std::string::npos) {
            throw;
        }
        throw FileError(message + "Name the folder of Halide's library in LD_LIBRARY_PATH");
    }
}

}  // namespace distile
