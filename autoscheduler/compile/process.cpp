#include "autoscheduler/compile/process.h"
#include "autoscheduler/compile/job_slots.h"
#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace distile {

namespace {

std::string contents(const std::string &path) {
    std::ifstream stream(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
}

volatile std::sig_atomic_t interrupted = 0;

extern "C" void note_interrupt(int) {
    interrupted = 1;
}

/** With `new_group`, what the command starts can be ended together with it. */
pid_t start(const Command &command, bool new_group) {
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
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, new_group ? POSIX_SPAWN_SETPGROUP : 0);
    pid_t pid = -1;
    const int error = posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
        throw FileError("the program '" + command.words[0] + "' cannot be started: " + std::strerror(error));
    }
    return pid;
}

}  // namespace

void run_each(const std::vector<Command> &commands, int jobs, const CommandLimits &limits,
              const std::function<bool(size_t, const CommandResult &)> &finished) {
    using Clock = std::chrono::steady_clock;
    struct Running {
        size_t index;
        Clock::time_point start;
        bool timed_out, stopped;
        JobSlot slot;
    };
    const bool limited = limits.seconds > 0 || limits.stop;
    const JobSlots unlimited("", 0);
    const JobSlots &slots = limits.slots ? *limits.slots : unlimited;
    std::map<pid_t, Running> running;
    std::string failure;
    size_t next = 0;
    bool go_on = true;
    auto pause = std::chrono::milliseconds(1);
    while ((go_on && next < commands.size()) || !running.empty()) {
        const bool stop = limits.stop && limits.stop();
        go_on = go_on && !stop;
        while (go_on && next < commands.size() && static_cast<int>(running.size()) < jobs) {
            try {
                const JobSlot slot = slots.try_take();
                if (!slot) {
                    break;
                }
                running[start(commands[next], limited)] = {next, Clock::now(), false, false, slot};
                next++;
            } catch (const FileError &error) {
                failure = error.what();
                go_on = false;
            }
        }
        bool ended = false;
        for (auto i = running.begin(); i != running.end();) {
            const auto [pid, command] = *i;
            const double seconds = std::chrono::duration<double>(Clock::now() - command.start).count();
            int status = 0;
            if (waitpid(pid, &status, WNOHANG) == 0) {
                i->second.timed_out = limits.seconds > 0 && seconds > limits.seconds;
                i->second.stopped = stop;
                if (i->second.timed_out || stop) {
                    kill(-pid, SIGKILL);
                }
                ++i;
                continue;
            }
            CommandResult result;
            result.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
            result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
            result.timed_out = command.timed_out;
            result.stopped = command.stopped;
            result.seconds = seconds;
            result.printed = contents(commands[command.index].log);
            i = running.erase(i);
            ended = true;
            go_on = finished(command.index, result) && go_on;
        }
        // Short commands are not kept waiting, and long ones not disturbed.
        pause = ended ? std::chrono::milliseconds(1) : std::min(pause * 2, std::chrono::milliseconds(20));
        if (!ended && (!running.empty() || go_on)) {
            std::this_thread::sleep_for(pause);
        }
    }
    if (!failure.empty()) {
        throw FileError(failure);
    }
}

void run_commands(const std::vector<Command> &commands, int jobs, const std::function<void(int)> &finished,
                  const JobSlots *slots) {
    std::optional<CommandFailed> failure;
    int done = 0;
    run_each(commands, jobs, {0, nullptr, slots}, [&](size_t index, const CommandResult &result) {
        if (!failure && !result.ok()) {
            failure.emplace("'" + commands[index].words[0] + "' failed" +
                            (result.signal != 0 ? std::string(" by a signal, ") + strsignal(result.signal) : "") +
                            (result.printed.empty() ? " and printed nothing" : "; it printed:\n" + result.printed));
        }
        finished(++done);
        return !failure;
    });
    if (failure) {
        throw CommandFailed(*failure);
    }
}

std::vector<std::string> shell_words(const std::string &command) {
    std::vector<std::string> words;
    bool in_word = false;
    char quote = '\0';
    for (size_t i = 0; i < command.size(); i++) {
        const char c = command[i], next = i + 1 < command.size() ? command[i + 1] : '\0';
        const bool ends = quote == '\0' && std::isspace(static_cast<unsigned char>(c)) != 0;
        if (!ends && !in_word) {
            words.emplace_back();
        }
        in_word = !ends;
        if (quote == '\0' ? c == '\'' || c == '"' : c == quote) {
            quote = quote == '\0' ? c : '\0';
        } else if (c == '\\' && (quote == '"' ? next == '"' || next == '\\' : quote == '\0' && next != '\0')) {
            words.back() += next;
            i++;
        } else if (!ends) {
            words.back() += c;
        }
    }
    if (quote != '\0') {
        throw FileError("a quote is not closed in: " + command);
    }
    return words;
}

std::string printable(std::string text) {
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return (c < ' ' && c != '\n') || c == 0x7f; }, '?');
    return text;
}

int cores_of_machine() {
    return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

Interrupts::Interrupts() {
    interrupted = 0;
    struct sigaction action {};
    action.sa_handler = note_interrupt;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_int_);
    sigaction(SIGTERM, &action, &before_term_);
}

Interrupts::~Interrupts() {
    sigaction(SIGINT, &before_int_, nullptr);
    sigaction(SIGTERM, &before_term_, nullptr);
}

bool Interrupts::seen() {
    return interrupted != 0;
}

TemporaryFolder::TemporaryFolder() {
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
    if (error) {
        throw FileError("there is no folder for temporary files (" + error.message() +
                        "): name one in the environment variable TMPDIR");
    }
    std::string name = (parent / "distile-XXXXXX").string();
    if (!mkdtemp(name.data())) {
        throw FileError("the temporary folder '" + name + "' cannot be made: " + std::strerror(errno));
    }
    path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

}  // namespace distile
