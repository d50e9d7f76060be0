/** \file
 * What the commands that search have in common: their options, and what follows from them.
 */
#ifndef DISTILE_SEARCH_SESSION_H
#define DISTILE_SEARCH_SESSION_H

#include "learned_model.h"
#include "plan.h"
#include "process.h"
#include "search.h"
#include "search_log.h"
#include "trial_batch.h"
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace distile {

/** The time of a run, and whether it should end: by a signal, or because its seconds are spent. */
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
    std::vector<std::string> masks, held_out, warm;
    int threads = 0; /**< 0: the cores of the device. */
    int jobs = 0;    /**< Compilers at once; 0: one a core. */
    /** Compilers at once. */
    int parallel_jobs() const;
    double timing_seconds = 0.5, measure_limit_s = 60, compile_limit_s = 60;
    int memory_mb = 4096;
    bool no_bound = false, no_model = false;
    SearchOptions search;
};

/** Adds the options that describe what to search for, and how to measure. */
void add_session_options(CLI::App &command, SessionOptions &options);
/** Adds the options of the search itself. */
void add_search_options(CLI::App &command, SessionOptions &options);

/** Everything that a search is for. */
class Session {
public:
    /** Throws FileError. */
    explicit Session(const SessionOptions &options);
    /** Of what a log was made for. `masks`: those of the log if empty. */
    Session(const LogHeader &header, const std::vector<std::string> &masks);

    Operator op;
    DeviceProfile device;
    Workload workload;
    std::string target;
    int empty_masks = 0; /**< Left out: nothing is to be computed for them. */
    MaskSet masks;

    const Space &space() const {
        return space_of(device.backend, workload.problem);
    }
    /** Throws std::exception unless this machine is the device, so that it can measure. */
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
