/** \file
 * Running other programs.
 */
#ifndef DISTILE_PROCESS_H
#define DISTILE_PROCESS_H

#include "plans/json_file.h"
#include <csignal>
#include <functional>
#include <string>
#include <vector>

namespace distile {

struct Command {
    std::vector<std::string> words; /**< The program, searched on PATH, and its arguments. */
    std::string log;                /**< File for its output. */
};

/** How a command ended. */
struct CommandResult {
    int exit_status = 0;
    int signal = 0; /**< The signal that ended it; 0 if none did. */
    bool timed_out = false, stopped = false;
    double seconds = 0;
    std::string printed;

    bool ok() const {
        return exit_status == 0 && signal == 0 && !timed_out && !stopped;
    }
};

class JobSlots;

/** When to end commands early, with all processes that they started. */
struct CommandLimits {
    double seconds = 0;              /**< The time limit of each command; 0: no limit. */
    std::function<bool()> stop;      /**< Ends them all once it is true; null: nothing does. */
    const JobSlots *slots = nullptr; /**< Each command takes one; null: only the caller limits them. */
};

/** Runs commands, at most `jobs` at once, and calls `finished` with the index and the result of each when it ends.
 * After `finished` returns false, it starts no more. Throws FileError if a program cannot be started, once the others
 * have ended. */
void run_each(const std::vector<Command> &commands, int jobs, const CommandLimits &limits,
              const std::function<bool(size_t, const CommandResult &)> &finished);

/** A command that was started and failed. */
class CommandFailed : public FileError {
public:
    using FileError::FileError;
};

/** Runs commands, at most `jobs` at once, and calls `finished` with the number done after each. If one fails, throws
 * CommandFailed with its output, once the others have ended. */
void run_commands(const std::vector<Command> &commands, int jobs, const std::function<void(int)> &finished,
                  const JobSlots *slots = nullptr);

/** The words of a command as a shell splits it: spaces part them, except in quotes and behind a backslash. Throws
 * FileError where a quote is not closed. */
std::vector<std::string> shell_words(const std::string &command);

/** A text without characters that steer a terminal, because messages quote files. */
std::string printable(std::string text);

/** How many commands this machine runs at once. */
int cores_of_machine();

/** While it lives, Ctrl-C and SIGTERM do not end the program: seen() reports them. Only one may live at a time. */
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

/** A new empty folder for temporary files, removed with its contents at the end. */
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
