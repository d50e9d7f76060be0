#include "autoscheduler/command/list_run.h"
#include "autoscheduler/command/search_session.h"
#include "autoscheduler/compile/process.h"
#include "autoscheduler/search/search_log.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>
#include <map>
#include <numeric>
#include <regex>
#include <set>

namespace distile {

namespace list_run {
namespace {

using nlohmann::json;

constexpr const char *state_names[] = {"pending", "done", "seconds_spent", "waiting", "skipped", "failed"};

const char *name_of(TaskState state) {
    return state_names[static_cast<int>(state)];
}

TaskState state_of(const json &name) {
    for (int state = 0; state < 6; state++) {
        if (name == state_names[state]) {
            return static_cast<TaskState>(state);
        }
    }
    return TaskState::Pending;
}

/** The seconds that the searches of some logs took; a log that is missing or broken has none. */
double seconds_of(const std::vector<std::string> &logs) {
    double seconds = 0;
    for (const std::string &path : logs) {
        try {
            const LogContents log = read_search_log(path);
            seconds += log.measured.empty() ? 0 : log.measured.back().elapsed_s;
        } catch (const FileError &) {
            continue;
        }
    }
    return seconds;
}

bool all_exist(const std::vector<std::string> &files) {
    return std::all_of(files.begin(), files.end(),
                       [](const std::string &file) { return std::filesystem::exists(file); });
}

std::regex expression_of(const std::string &only) {
    try {
        return std::regex(only);
    } catch (const std::regex_error &error) {
        throw FileError(fmt::format("--only '{}' is no regular expression: {}", only, error.what()));
    }
}

/** A summary with the numbers of its tasks by state, their seconds, and how much more plans cost on held-out masks than
 * the best of everything that was measured for them. */
json with_totals(json summary) {
    std::map<std::string, int> counts;
    double seconds = 0, losses = 0, most = -1;
    int judged = 0;
    std::string most_of;
    for (const json &row : summary.at("tasks")) {
        counts[row.value("state", "")]++;
        seconds += row.value("seconds", 0.0);
        const json found = row.value("found", json::object());
        if (found.contains("held_out_cost") && found.contains("held_out_cost_of_all")) {
            const double loss =
                found.at("held_out_cost").get<double>() / found.at("held_out_cost_of_all").get<double>() - 1;
            losses += loss;
            judged++;
            if (loss > most) {
                most = loss;
                most_of = row.value("name", "");
            }
        }
    }
    summary["counts"] = counts;
    summary["seconds"] = std::round(seconds);
    if (judged > 0) {
        const auto rounded = [](double value) { return std::round(value * 1e4) / 1e4; };
        summary["held_out"] = {{"plans", judged},
                               {"mean_loss", rounded(losses / judged)},
                               {"most_loss", rounded(most)},
                               {"most_of", most_of}};
    }
    return summary;
}

void make_folder_of(const std::string &path) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::error_code error;
    if (!folder.empty()) {
        std::filesystem::create_directories(folder, error);
    }
    if (error) {
        throw FileError("the folder '" + folder.string() + "' cannot be made: " + error.message());
    }
}

}  // namespace
}  // namespace list_run

using namespace list_run;

std::string duration_text(double seconds) {
    const auto minutes = static_cast<long>(std::lround(seconds / 60));
    return seconds < 90        ? fmt::format("{:.0f} s", seconds)
           : minutes < 60      ? fmt::format("{} min", minutes)
           : minutes % 60 == 0 ? fmt::format("{} h", minutes / 60)
                               : fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

std::vector<CLI::Option *> add_list_options(CLI::App &command, ListRunOptions &options, const std::string &all_help,
                                            CLI::Option *one) {
    CLI::Option *all = command.add_option("--all", options.list, all_help)->excludes(one->required(false));
    command.add_option("--only", options.only, "With --all: only the plans whose names this regular expression finds")
        ->needs(all);
    command
        .add_option("--summary", options.summary,
                    "With --all: the file that says what became of each plan (default: " + command.get_name() +
                        ".json beside what is written)")
        ->needs(all);
    const auto add_limit = [&](const char *name, double seconds, const char *help) {
        return command
            .add_option_function<double>(
                name, [&options, seconds](double number) { options.seconds = number * seconds; }, help)
            ->check(CLI::Range(0.0001, 1e6))
            ->needs(all);
    };
    CLI::Option *hours = add_limit("--hours", 3600, "With --all: the hours for everything, over all runs");
    CLI::Option *minutes = add_limit("--minutes", 60, "With --all: the minutes for everything, in place of --hours");
    minutes->excludes(hours);
    return {hours, minutes};
}

void require_one_or_list(const ListRunOptions &options, const CLI::Option &one) {
    if (options.list.empty() && one.count() == 0) {
        throw CLI::RequiredError(one.get_name() + " or --all");
    }
}

ListRun::ListRun(ListRunOptions options, const std::string &usual_summary, nlohmann::json settings,
                 std::vector<ListTask> tasks)
    : options_(std::move(options)), path_(options_.summary.empty() ? usual_summary : options_.summary),
      settings_(std::move(settings)) {
    const std::regex only = expression_of(options_.only);
    std::set<std::string> names;
    for (ListTask &task : tasks) {
        if (!names.insert(task.name).second) {
            throw FileError(fmt::format("'{}' has '{}' twice", options_.list, task.name));
        }
        if (std::regex_search(task.name, only)) {
            tasks_.push_back(std::move(task));
        }
    }
    std::stable_sort(tasks_.begin(), tasks_.end(),
                     [](const ListTask &a, const ListTask &b) { return a.gain > b.gain; });
    if (tasks_.empty()) {
        throw FileError(fmt::format("--only '{}' finds none of the {} plans of '{}', for instance '{}'", options_.only,
                                    names.size(), options_.list, names.empty() ? "" : *names.begin()));
    }
    make_folder_of(path_);
    for (const ListTask &task : tasks_) {
        std::for_each(task.made.begin(), task.made.end(), make_folder_of);
    }
    lock_ =
        std::make_unique<LockedFile>(path_ + ".lock", "the file '" + path_ + ".lock'",
                                     " is in use by another run: wait until that has ended, or name another folder");
    read_summary();
}

bool ListRun::is_done(size_t task) const {
    return progress_[task].state == TaskState::Done || progress_[task].state == TaskState::SecondsSpent;
}

void ListRun::read_summary() {
    progress_.resize(tasks_.size());
    json known = json::object();
    if (std::filesystem::exists(path_)) {
        const json file = read_json(path_);
        if (!file.is_object() || file.value("distile_list_run", json()) != 1) {
            throw FileError("the file '" + path_ + "' is no summary of a run: name another folder, or move it away");
        }
        if (file.value("settings", json()) == settings_) {
            for (const json &row : file.value("tasks", json::array())) {
                known[row.value("name", "")] = row;
            }
        } else {
            warn(fmt::format("the summary '{}' is of other settings, so every plan is looked at again; what their logs "
                             "have is kept",
                             path_));
        }
    }
    for (size_t i = 0; i < tasks_.size(); i++) {
        Progress &progress = progress_[i];
        progress.seconds = seconds_of(tasks_[i].logs);
        const json row = known.value(tasks_[i].name, json::object());
        if (row.value("version", "") == tasks_[i].version) {
            progress.state = state_of(row.value("state", json()));
            progress.why = row.value("why", "");
            progress.seconds = std::max(progress.seconds, row.value("seconds", 0.0));
            progress.found = row.value("found", json::object());
        }
        const bool repeats = options_.again && progress.found.contains("doubt"),
                   lacks_files = !all_exist(tasks_[i].made);
        if (!tasks_[i].skipped.empty()) {
            progress.state = TaskState::Skipped;
            progress.why = tasks_[i].skipped;
        } else if (!is_done(i) || lacks_files || repeats) {
            // What failed or waited is tried again.
            progress.state = TaskState::Pending;
        }
    }
}

json ListRun::summary() const {
    json rows = json::array();
    for (size_t i = 0; i < tasks_.size(); i++) {
        const Progress &progress = progress_[i];
        json row = {{"name", tasks_[i].name},
                    {"state", name_of(progress.state)},
                    {"seconds", std::round(progress.seconds * 10) / 10}};
        row.update(tasks_[i].about);
        if (!tasks_[i].version.empty()) {
            row["version"] = tasks_[i].version;
        }
        if (!progress.why.empty()) {
            row["why"] = progress.why;
        }
        if (!progress.found.empty()) {
            row["found"] = progress.found;
        }
        rows.push_back(std::move(row));
    }
    return with_totals({{"distile_list_run", 1}, {"list", options_.list}, {"settings", settings_}, {"tasks", rows}});
}

void ListRun::write_summary() const {
    json file = summary();
    // Plans that --only leaves out stay.
    if (std::filesystem::exists(path_)) {
        const json old = read_json(path_);
        if (old.is_object() && old.value("settings", json()) == settings_) {
            std::set<std::string> names;
            for (const ListTask &task : tasks_) {
                names.insert(task.name);
            }
            for (const json &row : old.value("tasks", json::array())) {
                if (names.count(row.value("name", "")) == 0) {
                    file["tasks"].push_back(row);
                }
            }
        }
    }
    write_file(path_, format_json(with_totals(std::move(file))));
}

double ListRun::spent() const {
    return std::accumulate(progress_.begin(), progress_.end(), 0.0,
                           [](double sum, const Progress &progress) { return sum + progress.seconds; });
}

std::vector<size_t> ListRun::tasks_in(TaskState state) const {
    std::vector<size_t> found;
    for (size_t i = 0; i < tasks_.size(); i++) {
        if (progress_[i].state == state) {
            found.push_back(i);
        }
    }
    return found;
}

std::vector<size_t> ListRun::next_round() const {
    const double left = options_.seconds - spent();
    std::vector<size_t> pending = tasks_in(TaskState::Pending);
    if (options_.seconds > 0 && left <= 0) {
        return {};
    }
    if (!pending.empty() || options_.seconds == 0) {
        return pending;
    }
    std::vector<size_t> short_of_time = tasks_in(TaskState::SecondsSpent);
    const auto gained = [&](size_t task) { return progress_[task].found.value("gained", 1.0); };
    std::stable_sort(short_of_time.begin(), short_of_time.end(),
                     [&](size_t a, size_t b) { return gained(a) > gained(b); });
    const auto useless =
        std::find_if(short_of_time.begin(), short_of_time.end(), [&](size_t task) { return gained(task) <= 0; });
    if (useless != short_of_time.begin()) {
        short_of_time.erase(useless, short_of_time.end());
    }
    // A share that compiles nothing is no use.
    const double least = std::max(1.0, .05 * options_.seconds / static_cast<double>(tasks_.size()));
    return left / static_cast<double>(short_of_time.size()) >= least ? short_of_time : std::vector<size_t>();
}

std::string ListRun::time_left(size_t task, double running) const {
    if (options_.seconds > 0) {
        return duration_text(std::max(0.0, options_.seconds - spent() - running)) + " left at most";
    }
    double seconds = 0;
    int done = 0;
    for (size_t i = 0; i < tasks_.size(); i++) {
        if (is_done(i) && i != task) {
            seconds += progress_[i].seconds;
            done++;
        }
    }
    if (done == 0) {
        return "";
    }
    const double each = seconds / done;
    const auto others = static_cast<double>(tasks_in(TaskState::Pending).size());
    return "about " + duration_text(std::max(0.0, each * others - running)) + " left";
}

void ListRun::work(size_t task, size_t others, const Body &body) {
    Progress &progress = progress_[task];
    const double share = options_.seconds > 0 && options_.shares_out
                             ? std::max(.001, (options_.seconds - spent()) / static_cast<double>(others))
                             : 0;
    const Stopwatch watch(0);
    const double before = progress.seconds;
    const auto place = [&] { return fmt::format("{}/{}", task + 1, tasks_.size()); };
    const auto label = [&] {
        const std::string left = time_left(task, watch.elapsed());
        return fmt::format("{}{}, {}: ", place(), left.empty() ? "" : ", " + left, tasks_[task].name);
    };
    const auto end = [&](TaskOutcome outcome) {
        progress.seconds = before + watch.elapsed();
        progress.state = outcome.state;
        progress.why = std::move(outcome.why);
        progress.found = outcome.found.is_null() ? json::object() : std::move(outcome.found);
        write_summary();
    };
    try {
        end(body(task, share, label));
    } catch (const CLI::Error &) {
        end({TaskState::Pending, "it was interrupted", progress.found});
        throw;
    } catch (const std::exception &error) {
        // Ctrl-C ends compilers too, which then seem to fail.
        if (Interrupts::seen()) {
            end({TaskState::Pending, "it was interrupted", progress.found});
            return;
        }
        end({TaskState::Failed, printable(error.what()), json::object()});
    }
    if (!options_.quiet && !options_.json) {
        const std::string left = time_left(task, 0);
        std::fputs(fmt::format("[{}] {}: {} ({}){}\n", place(), tasks_[task].name,
                               progress.state == TaskState::Failed ? "FAILED: " + progress.why : progress.why,
                               duration_text(progress.seconds), left.empty() ? "" : "; " + left)
                       .c_str(),
                   stdout);
        std::fflush(stdout);
    }
}

void ListRun::report() const {
    if (options_.json) {
        std::fputs(format_json(summary()).c_str(), stdout);
    } else if (!options_.quiet) {
        std::string text = fmt::format("{} plans of '{}':", tasks_.size(), options_.list);
        for (const auto &[state, words] :
             {std::pair{TaskState::Done, "done"}, std::pair{TaskState::SecondsSpent, "done within their time"},
              std::pair{TaskState::Waiting, "wait for another machine"}, std::pair{TaskState::Skipped, "skipped"},
              std::pair{TaskState::Failed, "failed"}, std::pair{TaskState::Pending, "left"}}) {
            const size_t count = tasks_in(state).size();
            text += count > 0 ? fmt::format(" {} {},", count, words) : "";
        }
        text.back() = ';';
        text += fmt::format(" {} in all. {}\n", duration_text(spent()), path_);
        std::fputs(text.c_str(), stdout);
        if (const json all = summary(); all.contains("held_out")) {
            const json &judged = all.at("held_out");
            std::fputs(
                fmt::format("On held-out masks {} plans cost {:.1f} % more than the best of everything measured, "
                            "'{}' the most, {:.1f} %.\n",
                            judged.at("plans").get<int>(), 100 * judged.at("mean_loss").get<double>(),
                            judged.at("most_of").get<std::string>(), 100 * judged.at("most_loss").get<double>())
                    .c_str(),
                stdout);
        }
        const auto doubtful = std::count_if(progress_.begin(), progress_.end(),
                                            [](const Progress &progress) { return progress.found.contains("doubt"); });
        if (doubtful > 0) {
            warn(fmt::format(
                "{} of {} plans have doubtful times, because the machine was busy; '{}' says which, and the "
                "same command {}measures them again",
                doubtful, tasks_.size(), path_, options_.again_option));
        }
        std::set<std::string> reasons;
        for (const size_t task : tasks_in(TaskState::Skipped)) {
            if (reasons.insert(progress_[task].why).second) {
                std::fputs(fmt::format("Skipped '{}': {}\n", tasks_[task].name, progress_[task].why).c_str(), stdout);
            }
        }
    }
}

void ListRun::run(const Body &body) {
    const auto stopped = [&](size_t left) {
        std::fputs(fmt::format("distile: stopped with {} of {} plans left, as '{}' says: run the same command again to "
                               "continue.\n",
                               left, tasks_.size(), path_)
                       .c_str(),
                   stderr);
        throw CLI::RuntimeError(130);
    };
    write_summary();
    std::vector<size_t> round;
    try {
        while (!(round = next_round()).empty()) {
            for (size_t i = 0; i < round.size(); i++) {
                if (options_.seconds > 0 && spent() >= options_.seconds) {
                    break;
                }
                work(round[i], round.size() - i, body);
                if (Interrupts::seen()) {
                    break;
                }
            }
            if (Interrupts::seen()) {
                break;
            }
        }
    } catch (const CLI::RuntimeError &) {
        stopped(tasks_in(TaskState::Pending).size());
    }
    const std::vector<size_t> failed = tasks_in(TaskState::Failed), pending = tasks_in(TaskState::Pending);
    if (Interrupts::seen() && !pending.empty()) {
        stopped(pending.size());
    }
    report();
    if (!failed.empty()) {
        throw FileError(fmt::format("{} of {} plans failed, the first, '{}', because {}. '{}' says why of each; the "
                                    "same command tries them again",
                                    failed.size(), tasks_.size(), tasks_[failed.front()].name,
                                    progress_[failed.front()].why, path_));
    }
    if (!pending.empty()) {
        throw FileError(
            fmt::format("the time is spent before {} of {} plans, the first '{}', have what they need: give "
                        "more with --hours",
                        pending.size(), tasks_.size(), tasks_[pending.front()].name));
    }
}

}  // namespace distile
