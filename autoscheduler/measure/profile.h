/** \file
 * Measuring the time table of a plan on this machine.
 */
#ifndef DISTILE_PROFILE_H
#define DISTILE_PROFILE_H

#include "autoscheduler/measure/shared_object.h"
#include "plans/plan.h"
#include <functional>

namespace distile {

struct ProfileOptions {
    /** Numbers of threads to measure with, on a GPU numbers of multiprocessors. Empty: one thread and all, or all
     * multiprocessors. */
    std::vector<int> threads;
    double seconds_per_variant = 0.5; /**< Time to spend on each variant and number of threads. */
    std::vector<float> weights;       /**< On a CPU, those of read_weights(); empty: drawn ones. */
};

/** Where a plan was measured, and its time table. */
struct Profile {
    std::string device;
    std::vector<PlanTime> times;
    std::string doubt; /**< Why the times are doubtful, though they were measured again; "" if they are not. */
};

/** What is being done, and how much of it is done, from 0 to 1. */
using Progress = std::function<void(const std::string &what, double part)>;

/** The time of every variant at several tile counts, medians of calls that alternate between the variants. The input
 * has its border, and the calls the first mode of each kind: the others cost the variants alike (docs/runtime.md). */
Profile profile_cpu(const Plan &plan, const SharedObject &object, const ProfileOptions &options,
                    const Progress &progress);
/** The profile of a plan for CUDA GPUs, as profile_cpu() makes it, by replays of graphs. */
Profile profile_cuda(const Plan &plan, const SharedObject &object, const ProfileOptions &options,
                     const Progress &progress);

/** The profile of a plan for OpenCL devices, as profile_cpu() makes it, by calls that are waited for. */
Profile profile_opencl(const Plan &plan, const SharedObject &object, const ProfileOptions &options,
                       const Progress &progress);

}  // namespace distile

#endif
