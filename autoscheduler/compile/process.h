/** \file
 * Running other programs.
 */
#ifndef DISTILE_PROCESS_H
#define DISTILE_PROCESS_H

#include <csignal>
#include <functional>
#include <string>
#include <vector>

namespace distile {

struct Command {
    std::vector<std::string> words; /**< The program, searched on PATH, and its arguments. */
    std::string log;                /**< File that gets what it prints. */
};

/** How a command ended. */
struct CommandResult {
    int exit_status = 0;
    int signal = 0; /**< That ended it; 0 if none did. */
    bool timed_out = false, stopped = false;
    double seconds = 0;
    std::string printed;

    bool ok() const {
        return exit_status == 0 && signal == 0 && !timed_out && !stopped;
    }
};

class JobSlots;

/** What ends commands early, with all processes that they started. */
struct CommandLimits {
    double seconds = 0;              /**< Of each; 0: no limit. */
    std::function<bool()> stop;      /**< Ends them all once it is true; null: nothing does. */
    const JobSlots *slots = nullptr; /**< Of which each command takes one; null: there is no limit but the caller's. */
};

/** Runs commands, at most `jobs` at once, and calls `finished` with the index and the result of each when it ends.
 * After `finished` returned false none is started any more. Throws FileError where a program cannot be started; the
 * others are then awaited first. */
void run_each(const std::vector<Command> &commands, int jobs, const CommandLimits &limits,
              const std::function<bool(size_t, const CommandResult &)> &finished);

/** Runs commands, at most `jobs` at once, and calls `finished` with the number done after each. Throws
 * FileError with what a command printed if one fails; the others are then awaited first. */
void run_commands(const std::vector<Command> &commands, int jobs, const std::function<void(int)> &finished,
                  const JobSlots *slots = nullptr);

/** A text without characters that steer a terminal: messages quote what files say. */
std::string printable(std::string text);

/** Of this machine: how many commands to run at once. */
int cores_of_machine();

/** While it lives, Ctrl-C and SIGTERM do not end the program but are asked for. One at a time. */
class Interrupts {
public:
    Interrupts();
    ~Interrupts();
    Interrupts(const Interrupts &) = delete;
    Interrupts &operator=(const Interrupts &) = delete;

    /** True from the first signal on. */
    static bool seen();

private:
    struct sigaction before_int_ {
    }, before_term_{};
};

/** A new empty folder for temporary files, removed with all that it holds at the end. */
class TemporaryFolder {
public:
    TemporaryFolder();
    ~TemporaryFolder();
    TemporaryFolder(const TemporaryFolder &) = delete;
    TemporaryFolder &operator=(const TemporaryFolder &) = delete;

    const std::string &path() const {
        return path_;
    }

private:
    std::string path_;
};

}  // namespace distile

#endif
