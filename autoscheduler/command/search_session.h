/** \file
 * What the commands that search share: their options, and the objects made from them.
 */
#ifndef DISTILE_SEARCH_SESSION_H
#define DISTILE_SEARCH_SESSION_H

#include "autoscheduler/bound/code_choice.h"
#include "autoscheduler/compile/process.h"
#include "autoscheduler/measure/trial_batch.h"
#include "autoscheduler/search/learned_model.h"
#include "autoscheduler/search/search.h"
#include "autoscheduler/search/search_log.h"
#include "autoscheduler/search/strategy.h"
#include "plans/plan.h"
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace distile {

/** Measures the time of a run, and says when to end it: after a signal, or when its seconds are spent. */
class Stopwatch {
public:
    /** 0: no limit. */
    explicit Stopwatch(double seconds) : seconds_(seconds) {
    }
    double elapsed() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }
    bool stop() const {
        return Interrupts::seen() || (seconds_ > 0 && elapsed() > seconds_);
    }

private:
    double seconds_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/** Options of the command line. */
struct SessionOptions {
    std::string op, backend = cpu_backend().name, device, target;
    std::string dtype; /**< The type to search in; "": that of the operator file. */
    Math math = Math::Float32;
    std::string level;   /**< A level of CPUs below the device to search for, for instance "avx2"; "": the device. */
    std::string weights; /**< File of the operator's weights; "": random ones. */
    std::vector<std::string> masks, held_out, warm;
    int threads = 0; /**< 0: the cores of the device. */
    int jobs = 0;    /**< Compilers at once; 0: one a core. */
    /** Compilers at once. */
    int parallel_jobs() const;
    double timing_seconds = 0.5, measure_limit_s = 60, compile_limit_s = 60;
    int memory_mb = 4096;
    bool no_bound = false, no_model = false;
    std::string strategy = strategy_names().front();
    bool all_weights = false; /**< Code that multiplies with all weights, also of an operator that has zeros. */
    SearchOptions search;
};

/** Throws FileError if a file of weights is given for a backend whose code skips no zeros. */
void check_weights_for(const std::string &backend, const std::string &weights);
/** The operator of a file, in another type unless `dtype` is "", and with the share of zeros of its weights if a file
 * has them. Throws FileError. */
Operator read_operator(const std::string &path, const std::string &weights, const std::string &dtype);
/** The device that options name; without a name, this machine's CPU. Throws FileError. */
DeviceProfile find_device(const SessionOptions &options);

/** Adds the options that describe what to search for, and how to measure. Returns that of the operator. */
CLI::Option *add_session_options(CLI::App &command, SessionOptions &options);
/** Adds the option --dtype. */
void add_dtype_option(CLI::App &command, std::string &dtype);
/** Adds the option --held-out. */
void add_held_out_option(CLI::App &command, std::vector<std::string> &held_out);
/** Where no masks are given, takes the training set of the suite, and its other set to judge the result by. */
void take_suite(std::vector<std::string> &masks, std::vector<std::string> &held_out);
/** Adds the options of the search itself. */
void add_search_options(CLI::App &command, SessionOptions &options);

/** What a search optimises: an operator on a device, over masks. */
class Session {
public:
    /** Throws FileError. */
    explicit Session(const SessionOptions &options);
    /** The session that a log is of. `masks`: those of the log if empty. */
    Session(const LogHeader &header, const std::vector<std::string> &masks);

    Operator op;
    DeviceProfile device;
    CodeChoice code;
    Workload workload;
    int empty_masks = 0; /**< Masks that were left out because they have no active pixel. */
    MaskSet masks;

    const Space &space() const {
        return space_of(device.backend, workload.problem);
    }
    /** Throws std::exception unless this machine is the device and can measure. */
    void check_machine(const SessionOptions &options) const;
    LogHeader header(const SessionOptions &options) const;
    BatchSetup batch_setup(const SessionOptions &options) const;
    /** All legal points, or those that the bound keeps for the masks or for the whole image. */
    Pool pool(bool pruned, bool dense) const;
    /** A model of sparse or dense schedules as the options ask for. */
    std::unique_ptr<CostModel> model(const SessionOptions &options, bool dense) const;
};

/** Prints what to do after a batch was compiled into a folder, to be measured elsewhere. */
void say_how_to_measure(const std::string &folder, size_t measured, const std::string &log);

/** The plan of a solution. Its times are those that the search measured. */
Plan plan_of(const Session &session, const Solution &solution, const std::string &name);

}  // namespace distile

#endif
