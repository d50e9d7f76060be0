/** \file
 * Batches of trials: compiled into a folder, and measured from there by workers, on this machine or on another one to
 * which the folder is carried.
 *
 * The folder holds request.json, the weights if a file has them, one shared object a trial, and results.jsonl: a line a
 * measurement, as in the log of a search. Who compiles into it or measures it locks the results. Trials are compiled in
 * parallel, and only then measured, one at a time with nothing else running. Each is measured by a worker, a process of
 * its own that may crash, hang or use up its memory without harm to the others.
 */
#ifndef DISTILE_TRIAL_BATCH_H
#define DISTILE_TRIAL_BATCH_H

#include "autoscheduler/bound/code_choice.h"
#include "autoscheduler/search/measurer.h"
#include "plans/operator.h"
#include "plans/plan.h"
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace distile {

/** What all trials of a batch have in common. */
struct BatchSetup {
    Operator op;
    std::string backend;
    CodeChoice code;
    std::string device;               /**< Its name; "" where it does not matter. */
    int threads = 1;                  /**< On a GPU multiprocessors. */
    double timing_seconds = 0.5;      /**< To spend on the repeats of a trial. */
    double compile_limit_s = 60;      /**< For compiling one. */
    double measure_limit_s = 60;      /**< For measuring one: after it, it hangs. */
    int64_t memory_bytes = 4LL << 30; /**< The memory that a compiler or a worker may use. */
    std::string weights;              /**< A file for read_weights(); "": drawn weights. */
};

/** A trial in a folder. */
struct BatchTrial {
    Trial trial;
    std::string object;  /**< Its file in the folder; "" if it did not compile. */
    std::string message; /**< Why it did not. */
    double compile_s = 0;
    bool reference = false; /**< Known already: it is there to show drifts of the device. */
};

struct Batch {
    BatchSetup setup;
    std::vector<BatchTrial> trials;
    double reference_us = 0; /**< What the reference took in the last batches; 0: not known. */
};

/** The schedule that shows drifts of the device, the first that a search measured with success, and what it took. */
class Reference {
public:
    void learn(const std::vector<Measurement> &measured);
    /** Null as long as nothing was measured with success. */
    const Trial *trial() const {
        return trial_ ? &*trial_ : nullptr;
    }
    /** The median of the last times; 0 if there are none. */
    double us() const;

private:
    std::optional<Trial> trial_;
    std::vector<double> us_;
};

/** A plan with the one variant of a trial. */
Plan trial_plan(const BatchSetup &setup, const Trial &trial);

struct BatchHooks {
    std::function<bool()> stop;                                      /**< Ends everything early. */
    std::function<void(const std::string &what, int done)> progress; /**< Number of trials compiled, or measured. */
};

/** Compiles trials and the reference, if there is one, into a folder, `jobs` at once. Returns false if it was stopped;
 * the folder then holds no request. Throws FileError, also where a trial does not compile and the schedule is not at
 * fault: a program, a library or room on the disk is missing. */
bool compile_batch(const std::string &folder, const BatchSetup &setup, const std::vector<Trial> &trials,
                   const Reference &reference, int jobs, const BatchHooks &hooks);

/** The request of a folder. Throws FileError. */
Batch read_batch(const std::string &folder);
/** What was measured from a folder so far; a broken last line is skipped. */
std::vector<Measurement> read_results(const std::string &folder);

/** Measures what has no result yet, for at most `seconds` if that is not 0, and hands over each result. Returns true if
 * everything has a result. Throws FileError, also where the device cannot be used, or another program has the folder.
 */
bool measure_batch(const std::string &folder, double seconds, const BatchHooks &hooks,
                   const std::function<void(const Measurement &)> &done);

/** Measures on this machine. Its first trials are compiled and measured a few at a time, and then ever more, so that
 * what is stopped early has results too. */
class DeviceMeasurer : public Measurer {
public:
    /** `measured`: what the search knows already. */
    DeviceMeasurer(BatchSetup setup, int jobs, BatchHooks hooks, const std::vector<Measurement> &measured);
    void measure(const std::vector<Trial> &batch, const std::function<void(const Measurement &)> &done) override;

private:
    BatchSetup setup_;
    int jobs_;
    BatchHooks hooks_;
    Reference reference_;
    size_t at_once_;
};

/** Compiles each batch into a folder, to be measured elsewhere by measure_batch(). */
class FolderMeasurer : public Measurer {
public:
    FolderMeasurer(std::string folder, BatchSetup setup, int jobs, BatchHooks hooks);
    /** Takes over what was measured of the batch before and is not `known`; nothing if there was none. Throws FileError
     * where some of its trials still wait to be measured, or it is of another search. */
    void collect(const std::vector<Measurement> &known, const std::function<void(const Measurement &)> &done) const;
    /** `measured`: what the search knows already. */
    void learn_reference(const std::vector<Measurement> &measured);
    void measure(const std::vector<Trial> &batch, const std::function<void(const Measurement &)> &done) override;
    /** Whether a batch was compiled, and waits. */
    bool waiting() const {
        return waiting_;
    }

private:
    std::string folder_;
    BatchSetup setup_;
    int jobs_;
    BatchHooks hooks_;
    Reference reference_;
    bool waiting_ = false;
};

/** Sanitizers reserve much more memory than they use, and cannot live with a limit. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool can_limit_memory = false;
#else
constexpr bool can_limit_memory = true;
#endif

/** A worker: measures one trial of a folder in this process, beside the reference (-1: none), and writes a
 * WorkerResult. Returns the exit status: 0, or worker_cannot_measure where that is no fault of the trial: there is no
 * device to measure on, or code cannot be loaded. */
int run_worker(const std::string &folder, int index, int reference, const std::string &result_path);
constexpr int worker_cannot_measure = 3;

}  // namespace distile

#endif
