/** \file
 * Working through a list of tasks that takes hours: what is done is kept, and the time for all is shared out.
 */
#ifndef DISTILE_LIST_RUN_H
#define DISTILE_LIST_RUN_H

#include "autoscheduler/command/commands.h"
#include "autoscheduler/search/locked_file.h"
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace distile {

enum class TaskState {
    Pending,
    Done,
    SecondsSpent, /**< Done as far as its share of the time went. More time continues it. */
    Waiting,      /**< For another machine. */
    Skipped,      /**< This machine cannot do it. */
    Failed
};

/** What became of a task. */
struct TaskOutcome {
    TaskState state = TaskState::Done;
    std::string why;      /**< Why it ended, in words. */
    nlohmann::json found; /**< Members for the summary. "doubt": why its times are doubtful. "gained": the share of its
                               cost that the later half of its trials took away. */
};

struct ListTask {
    std::string name;
    nlohmann::json about;          /**< Members for the summary. */
    std::vector<std::string> logs; /**< Logs of searches: the time that they took counts even after a kill. */
    std::vector<std::string> made; /**< Files without which it is not done. */
    std::string skipped;           /**< Why this machine cannot do it; "" if it can. */
    std::string version;           /**< A hash of the operator or plan: the task is done again when it changes. */
    int gain = 0;                  /**< How much it is expected to gain: tasks with more come first. */
};

struct ListRunOptions {
    std::string list;                           /**< What the tasks are of, as the command line named it. */
    std::string only;                           /**< A regular expression on the tasks' names; "": all. */
    std::string summary;                        /**< The summary's file; "": where the command puts it. */
    double seconds = 0;                         /**< For all runs together; 0: no limit. */
    bool shares_out = false;                    /**< Whether a task ends once its share of the time is spent. */
    bool again = false;                         /**< Whether tasks with doubtful times are done again. */
    const char *again_option = "with --again "; /**< How a command is asked to. */
    bool json = false, quiet = false;
};

/** Adds --all LIST, which takes the place of `one`, with --only, --summary, --hours and --minutes. Returns the last
 * two. */
std::vector<CLI::Option *> add_list_options(CLI::App &command, ListRunOptions &options, const std::string &all_help,
                                            CLI::Option *one);
/** Throws CLI::RequiredError unless one of both was given. */
void require_one_or_list(const ListRunOptions &options, const CLI::Option &one);

/** Seconds in words: "40 s", "12 min", "3 h 5 min". */
std::string duration_text(double seconds);

/** A run over tasks. Its summary is a JSON file that says of each task what became of it. The same tasks with the same
 * settings go on where a run before ended. */
class ListRun {
public:
    /** Does a task within seconds (0: no limit). What it shows of its progress begins with a label. */
    using Body = std::function<TaskOutcome(size_t task, double seconds, const std::function<std::string()> &label)>;

    /** `settings` are what all results depend on: with others, no task counts as done. Throws FileError if another
     * process works with the same summary, and where --only leaves no task. */
    ListRun(ListRunOptions options, const std::string &usual_summary, nlohmann::json settings,
            std::vector<ListTask> tasks);

    /** What --only leaves, in the order of the work. */
    const std::vector<ListTask> &tasks() const {
        return tasks_;
    }
    bool is_done(size_t task) const;
    /** Works until nothing is left to do or the time is spent, and prints what became of the tasks. Throws FileError if
     * one failed, after all others, and CLI::RuntimeError after Ctrl-C. */
    void run(const Body &body);

private:
    struct Progress {
        TaskState state = TaskState::Pending;
        std::string why;
        double seconds = 0;
        nlohmann::json found = nlohmann::json::object();
    };

    void read_summary();
    void write_summary() const;
    nlohmann::json summary() const;
    double spent() const;
    std::vector<size_t> tasks_in(TaskState state) const;
    /** The tasks of a round: those that are left, or if there is time to spare those whose share was too small. Among
     * these, those whose last trials gained most come first, and those that gained nothing only where none did. */
    std::vector<size_t> next_round() const;
    void work(size_t task, size_t others, const Body &body);
    /** What all that is left may take, in words; "" before anything is known. */
    std::string time_left(size_t task, double running) const;
    void report() const;

    ListRunOptions options_;
    std::string path_;
    nlohmann::json settings_;
    std::vector<ListTask> tasks_;
    std::vector<Progress> progress_;
    std::unique_ptr<LockedFile> lock_;
};

}  // namespace distile

#endif
