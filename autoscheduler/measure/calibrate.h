/** \file
 * Calibrating a device: measuring the figures of its profile.
 */
#ifndef DISTILE_CALIBRATE_H
#define DISTILE_CALIBRATE_H

#include "autoscheduler/bound/device_profile.h"
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace distile {

/** What is being done, and how much of it is done, from 0 to 1. */
using Progress = std::function<void(const std::string &what, double part)>;

/** A measured call: what its busiest core did, one task after the other. */
struct TaskTime {
    double operations = 0, tasks = 0, us = 0;
};

/** us = alpha_us * operations + gamma_us * tasks + launch_us. */
struct TaskFit {
    double alpha_us = 0, gamma_us = 0, launch_us = 0;
};

/** Least squares of the relative errors; no coefficient is negative. Throws FileError where the times do not determine
 * alpha. */
TaskFit fit_task_times(const std::vector<TaskTime> &times);

/** A cache of data. */
struct CpuCache {
    int level = 0;
    int64_t bytes = 0;
    int line = 64;
    int count = 1; /**< The number of such caches that the cores use, wherever they are scheduled. */
};

/** The caches of calls on `cores` of some CPUs, from the nearest, as Linux tells them in a folder. Throws FileError. */
std::vector<CpuCache> cpu_caches(const std::string &folder, const std::vector<int> &cpus, int cores);

/** The profile of this machine's CPU for calls of some threads (0: one a core). Throws FileError. */
DeviceProfile calibrate_cpu(int cores, const Progress &progress);

/** The profile of the first GPU, or of a green context with some of its multiprocessors (0: all). Throws FileError,
 * also where there is no GPU or distile was built without a CUDA toolkit. */
DeviceProfile calibrate_cuda(int multiprocessors, const Progress &progress);

}  // namespace distile

#endif
