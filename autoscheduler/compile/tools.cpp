#include "autoscheduler/compile/tools.h"
#include "autoscheduler/bound/buildable.h"
#include "autoscheduler/compile/nvrtc.h"
#include "plans/architecture.h"
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <unistd.h>

namespace distile {

namespace {

/** The other cure for what is missing. */
const char *const packages = " (in Python's wheel: pip install \"distile[compiler]\")";

/** Whether there is a program of this name or path. */
bool is_program(const std::string &name) {
    if (name.empty()) {
        return false;
    }
    if (name.find('/') != std::string::npos) {
        return access(name.c_str(), X_OK) == 0;
    }
    const char *path = std::getenv("PATH");
    std::istringstream folders(path ? path : "/bin:/usr/bin");
    for (std::string folder; std::getline(folders, folder, ':');) {
        if (access((folder.empty() ? name : folder + "/" + name).c_str(), X_OK) == 0) {
            return true;
        }
    }
    return false;
}

/** A program with its arguments, from an environment variable or else by its usual name. */
std::vector<std::string> program_of(const char *variable, const char *usual) {
    const char *value = std::getenv(variable);
    const std::string given = value ? value : "";
    if (is_program(given)) {
        return {given};  // Its path may hold spaces.
    }
    try {
        const std::vector<std::string> command = shell_words(given);
        return command.empty() ? std::vector<std::string>{usual} : command;
    } catch (const FileError &error) {
        throw FileError(std::string("the environment variable ") + variable + " names no program: " + error.what());
    }
}

}  // namespace

std::string program_path() {
    return std::filesystem::read_symlink("/proc/self/exe").string();
}

std::string folder_of_tools() {
    return std::filesystem::path(program_path()).parent_path().string();
}

std::string folder_of_shipped_plans() {
    return folder_of_tools() + "/plans";
}

std::string tool(const std::string &name) {
    std::string path = folder_of_tools() + "/" + name;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
        throw FileError("'" + path + "' is missing; it is needed to compile plans. Run the `distile` of a complete " +
                        "installation or build (for NVIDIA GPUs, one made with a CUDA toolkit)");
    }
    return path;
}

std::string linked_object(const std::string &name, const std::string &target) {
    const char *folder = std::getenv("DISTILE_OBJECTS");
    if (!folder || !*folder) {
        if (find_platform(target) != &host_platform()) {
            throw FileError("the target " + target +
                            " is of another platform than this program's: name a folder with '" + name +
                            "' for it in the environment variable DISTILE_OBJECTS, and a compiler in CC");
        }
        return tool(name);
    }
    std::string path = (std::filesystem::path(folder) / name).string();
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
        throw FileError("'" + path + "' is missing: DISTILE_OBJECTS names the folder of the objects that code links");
    }
    return path;
}

std::vector<std::string> c_compiler() {
    const std::vector<std::string> command = program_of("CC", "cc");
    if (!is_program(command[0])) {
        throw FileError(
            "the C compiler '" + command[0] +
            "' cannot be started, because there is no such program: name one in the environment variable CC" +
            packages);
    }
    return command;
}

std::vector<std::string> cuda_compiler() {
    std::vector<std::string> command = program_of("CUDACXX", "nvcc");
    if (is_program(command[0])) {
        return command;
    }
    if (command[0] == "nvrtc" || (command[0] == "nvcc" && have_nvrtc())) {
        return {};
    }
    throw FileError("code for tensor cores needs a compiler of NVIDIA's, but '" + command[0] +
                    "' cannot be started, because there is no such program: install a CUDA toolkit, and name its nvcc "
                    "in the environment variable CUDACXX, or name the folder of NVRTC's library libnvrtc.so in "
                    "LD_LIBRARY_PATH");
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
                     "autoscheduler.variant=" + variant.name};
    if (!plan.op.reads_keys()) {
        command.words.push_back("tile_h=" + std::to_string(variant.tile_h()));
        command.words.push_back("tile_w=" + std::to_string(variant.tile_w()));
        command.words.push_back("channel_block=" + std::to_string(plan.channel_block(variant)));
    } else {
        for (const std::string knob : {"block_rows", "block_keys", "softmax_keys"}) {
            if (variant.theta.count(knob) != 0) {
                command.words.push_back(knob + "=" + std::to_string(variant.theta.at(knob)));
            }
        }
    }
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
    } catch (const CommandFailed &error) {
        const std::string message = error.what(), loader = "error while loading shared libraries: ";
        const size_t found = message.find(loader);
        if (found == std::string::npos) {
            throw GeneratorFailed(message);
        }
        const size_t begin = found + loader.size();
        const std::string cause = message.substr(begin, message.find('\n', begin) - begin);
        const bool is_missing = cause.rfind("libHalide", 0) == 0 && cause.find("cannot open") != std::string::npos;
        throw FileError(
            "'" + commands[0].words[0] + "' cannot be started (" + cause + ")" +
            (is_missing ? ": name the folder of Halide's library in LD_LIBRARY_PATH" + std::string(packages) : ""));
    }
}

}  // namespace distile
