/** \file
 * Running other programs.
 */
#ifndef DISTILE_PROCESS_H
#define DISTILE_PROCESS_H

#include <functional>
#include <string>
#include <vector>

namespace distile {

struct Command {
    std::vector<std::string> words; /**< The program, searched on PATH, and its arguments. */
    std::string log;                /**< File that gets what it prints. */
};

/** Runs commands, at most `jobs` at once, and calls `finished` with the number done after each. Throws
 * FileError with what a command printed if one fails; the others are then awaited first. */
void run_commands(const std::vector<Command> &commands, int jobs, const std::function<void(int)> &finished);

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
