#include "process.h"
#include "operator.h"
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace distile {

namespace {

std::string contents(const std::string &path) {
    std::ifstream stream(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
}

pid_t start(const Command &command) {
    std::vector<char *> arguments;
    for (const std::string &word : command.words) {
        arguments.push_back(const_cast<char *>(word.c_str()));
    }
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, command.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    pid_t pid = -1;
    const int error = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
        throw FileError("the program '" + command.words[0] + "' cannot be started: " + std::strerror(error));
    }
    return pid;
}

}  // namespace

void run_commands(const std::vector<Command> &commands, int jobs, const std::function<void(int)> &finished) {
    std::map<pid_t, const Command *> running;
    std::string failure;
    size_t next = 0;
    int done = 0;
    while (next < commands.size() || !running.empty()) {
        while (failure.empty() && next < commands.size() && static_cast<int>(running.size()) < jobs) {
            try {
                running[start(commands[next])] = &commands[next];
                next++;
            } catch (const FileError &error) {
                failure = error.what();
            }
        }
        if (running.empty()) {
            break;
        }
        int status = 0;
        const pid_t pid = waitpid(running.begin()->first, &status, 0);
        const Command &command = *running.at(pid);
        running.erase(pid);
        if (failure.empty() && !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
            failure = "'" + command.words[0] + "' failed; it printed:\n" + contents(command.log);
        }
        finished(++done);
    }
    if (!failure.empty()) {
        throw FileError(failure);
    }
}

TemporaryFolder::TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "distile-XXXXXX").string();
    if (!mkdtemp(name.data())) {
        throw FileError("no temporary folder can be made as '" + name + "': " + std::strerror(errno));
    }
    path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

}  // namespace distile
