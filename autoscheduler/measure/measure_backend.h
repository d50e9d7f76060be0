/** \file
 * How the devices of each backend are measured. A further backend is one file in backends/ that defines its
 * MeasureBackend, and one row in measure_backend.cpp.
 */
#ifndef DISTILE_MEASURE_BACKEND_H
#define DISTILE_MEASURE_BACKEND_H

#include "autoscheduler/measure/calibrate.h"
#include "autoscheduler/measure/profile.h"
#include "autoscheduler/measure/trial_runner.h"
#include "plans/backend.h"

namespace distile {

struct MeasureBackend {
    const Backend &backend;
    /** The profile of this machine's device, of `cores` of its cores; 0: all. */
    DeviceProfile (*calibrate)(int cores, const Progress &progress);
    /** Throws std::exception unless this machine has the device of a name ("": any) and can run code for a target. */
    void (*check)(const std::string &device, const std::string &target);
    Profile (*profile)(const Plan &plan, const SharedObject &object, const ProfileOptions &options,
                       const Progress &progress);
    /** A device with `workers` threads or multiprocessors; 0: all. */
    std::unique_ptr<TrialDevice> (*trial_device)(int workers);
    /** Whether a process that measures can be kept from taking all memory. */
    bool limits_memory;
    /** What `distile profile` measures with unless told otherwise, in words. */
    const char *default_workers;
    int least_workers;
};

const MeasureBackend &cpu_measure_backend();
const MeasureBackend &cuda_measure_backend();
const MeasureBackend &opencl_measure_backend();

/** Throws FileError if there is none of this name. */
const MeasureBackend &measure_backend(const std::string &name);

}  // namespace distile

#endif
