#include "autoscheduler/measure/trial_batch.h"
#include "autoscheduler/bound/bound.h"
#include "autoscheduler/compile/process.h"
#include "autoscheduler/compile/tools.h"
#include "autoscheduler/search/locked_file.h"
#include "autoscheduler/search/spread.h"
#include "runtime/base/strict_json.h"
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

namespace distile {

namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int batch_version = 1;
constexpr const char *reference_object = "reference.so";

double since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

json to_json(const Batch &batch) {
    json trials = json::array();
    for (const BatchTrial &trial : batch.trials) {
        trials.push_back({{"theta", trial.trial.theta},
                          {"dense", trial.trial.dense},
                          {"tiles", trial.trial.tiles},
                          {"object", trial.object},
                          {"message", trial.message},
                          {"compile_s", trial.compile_s},
                          {"reference", trial.reference}});
    }
    const BatchSetup &setup = batch.setup;
    return {{"distile_batch", batch_version},
            {"operator", to_json(setup.op)},
            {"backend", setup.backend},
            {"target", setup.code.target},
            {"tf32", setup.code.math == Math::TF32},
            {"device", setup.device},
            {"threads", setup.threads},
            {"timing_seconds", setup.timing_seconds},
            {"compile_limit_s", setup.compile_limit_s},
            {"measure_limit_s", setup.measure_limit_s},
            {"memory_bytes", setup.memory_bytes},
            {"weights", !setup.weights.empty()},
            {"reference_us", batch.reference_us},
            {"trials", trials}};
}

Measurement without_times(const BatchTrial &trial, Outcome outcome, const std::string &message) {
    Measurement measurement;
    measurement.theta = trial.trial.theta;
    measurement.dense = trial.trial.dense;
    measurement.outcome = outcome;
    measurement.message = message;
    measurement.compile_s = trial.compile_s;
    return measurement;
}

/** The first lines of what a program printed. */
std::string beginning(const std::string &text) {
    constexpr size_t most = 500;
    std::string result = text.substr(0, most);
    while (!result.empty() && (result.back() == '\n' || result.back() == ' ')) {
        result.pop_back();
    }
    return result;
}

/** What a compiler that failed says. */
std::string complaint(const CommandResult &result) {
    if (result.signal != 0) {
        return std::string("its compiler was ended by a signal, ") + strsignal(result.signal);
    }
    std::string text = beginning(result.printed);
    const std::string prefix = "distile: error: ";
    if (text.rfind(prefix, 0) == 0) {
        text = text.substr(prefix.size());
    }
    if (!text.empty() && text.back() == '.') {
        text.pop_back();
        text = beginning(text);
    }
    return text.empty() ? "its compiler ended with status " + std::to_string(result.exit_status) : text;
}

/** Compilers of a batch, and what they read and print, and leave when they are ended. */
class Compilers {
public:
    explicit Compilers(const BatchSetup &setup) : setup_(setup) {
    }

    /** Compiles a trial to a shared object in a folder. */
    Command command(const Trial &trial, const std::string &folder, const std::string &object) const {
        const std::string plan = temporary_.path() + "/" + object + ".json";
        write_file(plan, to_json(trial_plan(setup_, trial)).dump());
        Command command{
            {"env", "TMPDIR=" + temporary_.path(), program_path(), "compile", plan, "-o", folder + "/" + object, "-q"},
            plan + ".log"};
        if (can_limit_memory) {
            // The shell sets the limit for the compiler and all that it starts.
            const std::vector<std::string> shell = {
                "/bin/sh", "-c", "ulimit -v " + std::to_string(setup_.memory_bytes >> 10) + R"(; exec "$0" "$@")"};
            command.words.insert(command.words.begin(), shell.begin(), shell.end());
        }
        return command;
    }

    /** What is wrong with the tool chain if it, and not the schedule, is at fault for what a compiler printed; "" if
     * not. In doubt, the first schedule of the space is compiled, once. */
    std::string fault_of_tools(const CommandResult &result, const std::function<bool()> &stop) {
        if (is_fault_of_tools(result)) {
            return cause(result);
        }
        if (!tried_) {
            tried_ = true;
            const std::string &target = setup_.code.target;
            const Workload workload =
                workload_of(setup_.op, generic_device_profile(generic_device_of(target)), setup_.code);
            const Space &space = space_of(setup_.backend, workload.problem);
            const Trial first{unpack(space, legal_points(space, workload.problem).front()), false, {}};
            run_each({command(first, temporary_.path(), "first.so")}, 1, {setup_.compile_limit_s, stop},
                     [&](size_t, const CommandResult &ended) {
                         fault_ = ended.ok() || ended.stopped ? "" : cause(ended);
                         return true;
                     });
        }
        return fault_;
    }

private:
    static bool is_fault_of_tools(const CommandResult &result) {
        return !result.timed_out && result.signal == 0 &&
               (result.exit_status != generator_failed || blames_tools(result.printed));
    }

    /** What a tool that failed says, or why it could not say more. */
    std::string cause(const CommandResult &result) const {
        constexpr uintmax_t least_room = 16 << 20;
        std::error_code error;
        const uintmax_t room = std::filesystem::space(temporary_.path(), error).available;
        if (!error && room < least_room) {
            return "the folder for temporary files, '" +
                   std::filesystem::path(temporary_.path()).parent_path().string() + "', has room for " +
                   std::to_string(room >> 10) + " KiB only; make room there, or name another in TMPDIR";
        }
        if (result.timed_out) {
            return "even the first of the space takes longer than --compile-limit allows";
        }
        const bool maps = result.printed.find("failed to map segment") != std::string::npos;
        return complaint(result) + (maps ? "; it needs more memory than --memory-mb allows" : "");
    }

    const BatchSetup &setup_;
    const TemporaryFolder temporary_;
    bool tried_ = false;
    std::string fault_;
};

/** What a worker's end means for its trial. */
Measurement after_worker(const BatchTrial &trial, const CommandResult &result, int64_t memory_bytes) {
    const std::string printed = result.printed.empty() ? "" : ": " + beginning(result.printed);
    if (result.timed_out) {
        return without_times(trial, Outcome::TimedOut,
                             "it took more than " + std::to_string(std::lround(result.seconds)) +
                                 " seconds and was ended");
    }
    if (result.signal == SIGKILL) {
        return without_times(trial, Outcome::OutOfMemory,
                             "the system killed it, as it does when memory runs out (it may use " +
                                 std::to_string(memory_bytes >> 20) + " MiB)");
    }
    if (result.signal != 0) {
        return without_times(trial, Outcome::Crashed,
                             std::string("it was ended by a signal, ") + strsignal(result.signal) + printed);
    }
    return without_times(trial, Outcome::Crashed,
                         "it ended with status " + std::to_string(result.exit_status) + printed);
}

std::string results_path(const std::string &folder) {
    return folder + "/results.jsonl";
}

std::string weights_path(const std::string &folder) {
    return folder + "/weights.npy";
}

/** Keeps others from compiling into a folder, and from measuring it. */
LockedFile lock(const std::string &folder) {
    return {results_path(folder), "the results '" + results_path(folder) + "'",
            " are in use by another `distile measure` or search: wait until that has ended"};
}

double median_of_last(const std::vector<double> &values) {
    constexpr ptrdiff_t window = 9;
    const auto count = std::min<ptrdiff_t>(window, static_cast<ptrdiff_t>(values.size()));
    return count == 0 ? 0 : Spread({values.end() - count, values.end()}).median;
}

class Workers {
public:
    /** `reference_us`: what the reference took before. */
    Workers(std::string folder, const Batch &batch, const BatchHooks &hooks, std::vector<double> reference_us)
        : folder_(std::move(folder)), batch_(batch), hooks_(hooks), reference_us_(std::move(reference_us)) {
    }

    /** False if it was stopped. */
    bool measure(int index, int reference, Measurement &measurement) {
        const BatchTrial &trial = batch_.trials[index];
        const Clock::time_point start = Clock::now();
        WorkerResult best;
        const double expected = median_of_last(reference_us_);
        for (int attempt = 0; attempt < most_attempts; attempt++) {
            WorkerResult result;
            if (!run(index, reference, result)) {
                return false;
            }
            if (attempt == 0 || !result.measurement.ok() ||
                unsteadiness(result, expected) < unsteadiness(best, expected)) {
                best = result;
            }
            if (!result.measurement.ok() || is_steady(result, expected)) {
                break;
            }
        }
        measurement = best.measurement;
        measurement.doubt = doubt_of(best, expected);
        measurement.compile_s = trial.compile_s;
        measurement.measure_s = since(start);
        if (measurement.reference_us > 0) {
            reference_us_.push_back(measurement.reference_us);
        }
        return true;
    }

private:
    bool run(int index, int reference, WorkerResult &worker) {
        const TemporaryFolder temporary;
        const std::string result_path = temporary.path() + "/result.json";
        Command command;
        command.words = {program_path(), "worker", folder_, std::to_string(index), std::to_string(reference),
                         result_path};
        command.log = temporary.path() + "/worker.log";
        CommandResult result;
        run_each({command}, 1, {batch_.setup.measure_limit_s, hooks_.stop}, [&](size_t, const CommandResult &ended) {
            result = ended;
            return true;
        });
        // What a person or the system ended on purpose is no fault of the trial.
        if (result.stopped || result.signal == SIGINT || result.signal == SIGTERM || (hooks_.stop && hooks_.stop())) {
            return false;
        }
        if (result.exit_status == worker_cannot_measure) {
            throw FileError("nothing can be measured here: " + beginning(result.printed));
        }
        if (result.ok() && std::filesystem::exists(result_path)) {
            json json = read_json(result_path);
            worker.drift = json.at("drift").get<double>();
            worker.disturbance = {json.at("disturbance").get<double>(), json.at("disturbed_by").get<std::string>()};
            for (const char *member : {"drift", "disturbance", "disturbed_by"}) {
                json.erase(member);
            }
            worker.measurement = parse_measurement(json, "the worker's result");
        } else {
            worker = {after_worker(batch_.trials[index], result, batch_.setup.memory_bytes), 0, {}};
        }
        return true;
    }

    std::string folder_;
    const Batch &batch_;
    const BatchHooks &hooks_;
    std::vector<double> reference_us_;
};

}  // namespace

void Reference::learn(const std::vector<Measurement> &measured) {
    for (const Measurement &measurement : measured) {
        if (!trial_ && measurement.ok()) {
            trial_ = Trial{measurement.theta, measurement.dense, {measurement.times.back().tiles}};
        }
        if (measurement.reference_us > 0) {
            us_.push_back(measurement.reference_us);
        }
    }
}

double Reference::us() const {
    return median_of_last(us_);
}

Plan trial_plan(const BatchSetup &setup, const Trial &trial) {
    Plan plan = make_plan("trial", setup.op, get_backend(setup.backend), setup.code);
    add_variant(plan, "trial", trial.theta, trial.dense);
    return plan;
}

bool compile_batch(const std::string &folder, const BatchSetup &setup, const std::vector<Trial> &trials,
                   const Reference &reference, int jobs, const BatchHooks &hooks) {
    namespace fs = std::filesystem;
    std::error_code error;
    fs::create_directories(folder, error);
    const LockedFile locked = lock(folder);
    // Without a request, nobody measures a folder that is not whole.
    fs::remove(folder + "/request.json", error);
    fs::resize_file(results_path(folder), 0);
    if (!setup.weights.empty()) {
        fs::copy_file(setup.weights, weights_path(folder), fs::copy_options::overwrite_existing);
    }
    Batch batch{setup, {}, reference.us()};
    if (reference.trial()) {
        batch.trials.push_back({*reference.trial(), reference_object, "", 0, true});
    }
    for (const Trial &trial : trials) {
        batch.trials.push_back({trial, "trial" + std::to_string(batch.trials.size()) + ".so", "", 0, false});
    }
    Compilers compilers(setup);
    std::vector<Command> commands;
    for (const BatchTrial &trial : batch.trials) {
        fs::remove(folder + "/" + trial.object, error);
        commands.push_back(compilers.command(trial.trial, folder, trial.object));
    }
    int done = 0;
    std::string fault;
    const auto stop = [&] { return !fault.empty() || (hooks.stop && hooks.stop()); };
    run_each(commands, jobs, {setup.compile_limit_s, stop}, [&](size_t index, const CommandResult &result) {
        BatchTrial &trial = batch.trials[index];
        trial.compile_s = result.seconds;
        if (!result.ok() && !result.stopped) {
            trial.message = result.timed_out ? "compiling it took more than " +
                                                   std::to_string(std::lround(setup.compile_limit_s)) + " seconds"
                                             : complaint(result);
            fault = fault.empty() ? compilers.fault_of_tools(result, stop) : fault;
        }
        if (!result.ok()) {
            trial.object.clear();
        }
        if (hooks.progress && !result.stopped) {
            hooks.progress("compiling", ++done);
        }
        return fault.empty();
    });
    if (!fault.empty()) {
        throw FileError("no schedule can be compiled here: " + fault +
                        ". No trial was logged for this: fix it and run the same command again");
    }
    if (hooks.stop && hooks.stop()) {
        return false;
    }
    write_file(folder + "/request.json", format_json(to_json(batch)));
    return true;
}

Batch read_batch(const std::string &folder) {
    const std::string path = folder + "/request.json";
    const json json = read_json(path);
    if (!json.is_object() || json.value("distile_batch", 0) != batch_version) {
        throw FileError("the file '" + path + "' is no request of version " + std::to_string(batch_version));
    }
    const std::string where = "the request '" + path + "'";
    check_members(json,
                  {"distile_batch", "operator", "backend", "target", "tf32", "device", "threads", "timing_seconds",
                   "compile_limit_s", "measure_limit_s", "memory_bytes", "weights", "reference_us", "trials"},
                  where);
    try {
        Batch batch;
        BatchSetup &setup = batch.setup;
        setup.op = parse_operator(json.at("operator"), where + ", \"operator\"");
        json.at("backend").get_to(setup.backend);
        json.at("target").get_to(setup.code.target);
        setup.code.math = json.value("tf32", false) ? Math::TF32 : Math::Float32;
        json.at("device").get_to(setup.device);
        json.at("threads").get_to(setup.threads);
        json.at("timing_seconds").get_to(setup.timing_seconds);
        json.at("compile_limit_s").get_to(setup.compile_limit_s);
        json.at("measure_limit_s").get_to(setup.measure_limit_s);
        json.at("memory_bytes").get_to(setup.memory_bytes);
        setup.weights = json.value("weights", false) ? weights_path(folder) : "";
        batch.reference_us = json.value("reference_us", 0.0);
        for (const auto &row : json.at("trials")) {
            check_members(row, {"theta", "dense", "tiles", "object", "message", "compile_s", "reference"}, where);
            BatchTrial trial;
            trial.trial.theta = parse_theta(row.at("theta"), where);
            row.at("dense").get_to(trial.trial.dense);
            row.at("tiles").get_to(trial.trial.tiles);
            row.at("object").get_to(trial.object);
            row.at("message").get_to(trial.message);
            row.at("compile_s").get_to(trial.compile_s);
            row.at("reference").get_to(trial.reference);
            const std::vector<int64_t> &tiles = trial.trial.tiles;
            if (tiles.empty() || std::any_of(tiles.begin(), tiles.end(), [](int64_t count) { return count < 1; })) {
                throw FileError(where + " has a trial without numbers of tiles");
            }
            // Its code is run.
            if (trial.object.find('/') != std::string::npos) {
                throw FileError(where + " names an object outside of its folder");
            }
            batch.trials.push_back(trial);
        }
        return batch;
    } catch (const nlohmann::json::exception &error) {
        throw FileError(where + " is broken (" + error.what() + ")");
    }
}

std::vector<Measurement> read_results(const std::string &folder) {
    const std::string path = results_path(folder);
    std::ifstream stream(path);
    std::vector<Measurement> results;
    std::string line;
    while (std::getline(stream, line)) {
        std::string ignored;
        const json json = parse_strictly(line, false, ignored);
        if (!json.is_discarded()) {
            results.push_back(parse_measurement(json, "the results '" + path + "'"));
        }
    }
    return results;
}

bool measure_batch(const std::string &folder, double seconds, const BatchHooks &hooks,
                   const std::function<void(const Measurement &)> &done) {
    const Batch batch = read_batch(folder);
    const LockedFile locked = lock(folder);
    const std::vector<Measurement> before = read_results(folder);
    const auto has_result = [&](const Trial &trial, bool successful) {
        return std::any_of(before.begin(), before.end(), [&](const Measurement &measurement) {
            return measurement.theta == trial.theta && measurement.dense == trial.dense &&
                   (measurement.ok() || !successful);
        });
    };
    const std::string path = results_path(folder);
    const auto record = [&](const Measurement &measurement) {
        // A line that a kill left broken must not swallow this one.
        bool whole = true;
        {
            std::ifstream end(path, std::ios::binary | std::ios::ate);
            if (end && end.tellg() > 0) {
                end.seekg(-1, std::ios::end);
                whole = end.get() == '\n';
            }
        }
        std::ofstream stream(path, std::ios::app);
        stream << (whole ? "" : "\n") << to_json(measurement).dump(-1, ' ', false, json::error_handler_t::replace)
               << "\n"
               << std::flush;
        if (!stream) {
            throw FileError("the results '" + path +
                            "' cannot be written (is the disk full?); what was measured before "
                            "is kept: free some space and run the same command again");
        }
        done(measurement);
    };
    Reference known;
    known.learn(before);
    std::vector<double> reference_us;
    for (double us : {batch.reference_us, known.us()}) {
        if (us > 0) {
            reference_us.push_back(us);
        }
    }
    Workers workers(folder, batch, hooks, reference_us);
    const Clock::time_point start = Clock::now();
    int reference = -1, finished = 0;
    // The first that is known to work shows the drifts while the others are measured, unless the request names one:
    // the times of another could not be held against what that took before.
    const bool named = !batch.trials.empty() && batch.trials.front().reference;
    const auto choose_reference = [&](int i, bool works) {
        const BatchTrial &trial = batch.trials[i];
        if (reference < 0 && works && trial.reference == named && !trial.object.empty()) {
            reference = i;
        }
    };
    for (int i = 0; i < static_cast<int>(batch.trials.size()); i++) {
        const BatchTrial &trial = batch.trials[i];
        if (trial.reference || has_result(trial.trial, false)) {
            choose_reference(i, trial.reference || has_result(trial.trial, true));
            finished++;
            continue;
        }
        if ((hooks.stop && hooks.stop()) || (seconds > 0 && since(start) > seconds)) {
            return false;
        }
        Measurement measurement = without_times(trial, Outcome::NotCompiled, trial.message);
        if (!trial.object.empty() && !workers.measure(i, reference, measurement)) {
            return false;
        }
        choose_reference(i, measurement.ok());
        record(measurement);
        if (hooks.progress) {
            hooks.progress("measuring", ++finished);
        }
    }
    return true;
}

DeviceMeasurer::DeviceMeasurer(BatchSetup setup, int jobs, BatchHooks hooks, const std::vector<Measurement> &measured)
    : setup_(std::move(setup)), jobs_(jobs), hooks_(std::move(hooks)), at_once_(std::max(2, jobs)) {
    reference_.learn(measured);
}

void DeviceMeasurer::measure(const std::vector<Trial> &batch, const std::function<void(const Measurement &)> &done) {
    bool go_on = true;
    for (size_t first = 0; go_on && first < batch.size();) {
        const TemporaryFolder folder;
        const size_t end = std::min(first + at_once_, batch.size());
        const std::vector<Trial> some(batch.begin() + static_cast<ptrdiff_t>(first),
                                      batch.begin() + static_cast<ptrdiff_t>(end));
        go_on = compile_batch(folder.path(), setup_, some, reference_, jobs_, hooks_) &&
                measure_batch(folder.path(), 0, hooks_, [&](const Measurement &measurement) {
                    reference_.learn({measurement});
                    done(measurement);
                });
        first = end;
        at_once_ *= at_once_ < batch.size() ? 2 : 1;
    }
}

FolderMeasurer::FolderMeasurer(std::string folder, BatchSetup setup, int jobs, BatchHooks hooks)
    : folder_(std::move(folder)), setup_(std::move(setup)), jobs_(jobs), hooks_(std::move(hooks)) {
}

void FolderMeasurer::collect(const std::vector<Measurement> &known,
                             const std::function<void(const Measurement &)> &done) const {
    if (!std::filesystem::exists(folder_ + "/request.json")) {
        return;
    }
    const Batch batch = read_batch(folder_);
    if (to_json(batch.setup.op) != to_json(setup_.op) || batch.setup.code.target != setup_.code.target ||
        batch.setup.code.math != setup_.code.math || batch.setup.device != setup_.device ||
        batch.setup.threads != setup_.threads) {
        throw FileError("the folder '" + folder_ + "' holds trials of '" + batch.setup.op.name + "' for the device '" +
                        batch.setup.device + "': name another with --folder");
    }
    std::set<std::pair<Theta, bool>> measured;
    for (const Measurement &measurement : known) {
        measured.insert({measurement.theta, measurement.dense});
    }
    for (const Measurement &result : read_results(folder_)) {
        // What did not compile for want of a tool is no result, and will be proposed again.
        const bool is_result = result.outcome != Outcome::NotCompiled || !blames_tools(result.message);
        if (measured.insert({result.theta, result.dense}).second && is_result) {
            done(result);
        }
    }
    const auto missing = std::count_if(batch.trials.begin(), batch.trials.end(), [&](const BatchTrial &trial) {
        return !trial.reference && measured.count({trial.trial.theta, trial.trial.dense}) == 0;
    });
    if (missing > 0) {
        throw FileError(std::to_string(missing) + " trials in the folder '" + folder_ +
                        "' wait to be measured: run `distile measure " + folder_ +
                        "` on the device, bring the folder back, and run this command again");
    }
}

void FolderMeasurer::learn_reference(const std::vector<Measurement> &measured) {
    reference_.learn(measured);
}

void FolderMeasurer::measure(const std::vector<Trial> &batch, const std::function<void(const Measurement &)> &) {
    waiting_ = compile_batch(folder_, setup_, batch, reference_, jobs_, hooks_);
}

}  // namespace distile
