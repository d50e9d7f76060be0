#include "tools.h"
#include "operator.h"
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
        throw FileError("'" + path + "' is missing, with which plans are compiled: run the `distile` of a whole " +
                        "installation or build (for NVIDIA GPUs, one that was made with a CUDA toolkit)");
    }
    return path;
}

std::vector<std::string> c_compiler() {
    const char *variable = std::getenv("CC");
    std::istringstream words(variable ? variable : "");
    std::vector<std::string> command(std::istream_iterator<std::string>(words), {});
    return command.empty() ? std::vector<std::string>{"cc"} : command;
}

void run_generators(const std::vector<Command> &commands, int jobs, const std::function<void(int)> &finished) {
    try {
        run_commands(commands, jobs, finished);
    } catch (const FileError &error) {
        const std::string message = error.what();
        if (message.find("error while loading shared libraries: libHalide") == std::string::npos) {
            throw;
        }
        throw FileError(message + "Name the folder of Halide's library in LD_LIBRARY_PATH");
    }
}

}  // namespace distile
