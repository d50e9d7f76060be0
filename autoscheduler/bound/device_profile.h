/** \file
 * Device profiles: the calibrated figures of one device, by which the bound judges schedules. JSON files in
 * data/devices/, written by `distile calibrate`; docs/autoscheduler.md describes every member.
 */
#ifndef DISTILE_DEVICE_PROFILE_H
#define DISTILE_DEVICE_PROFILE_H

#include "plans/platform.h"
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace distile {

/** A level of a memory hierarchy. */
struct MemoryLevel {
    std::string name;    /**< "L1", "L2", "L3", "DRAM"; on a GPU "shared", "L2", "DRAM". */
    int64_t bytes = 0;   /**< Capacity for one core or multiprocessor, or for all where it is shared; 0 for DRAM. */
    bool shared = false; /**< One for all cores. */
    double gb_per_s = 0; /**< Bandwidth of one core or multiprocessor, or of all where the level is shared. */
    int transaction_bytes = 0; /**< A cache line, or a sector. */
    double latency_ns = 0;     /**< Latency of a load that depends on the one before. */
};

struct DeviceProfile {
    std::string name;     /**< The device's own name for itself. */
    std::string backend;  /**< The backend's name, as in plans. */
    std::string features; /**< Vector extensions of a CPU as the runtime names them, or "sm_90". */
    int cores = 0;        /**< Cores used, or multiprocessors. */
    int vector_lanes = 0, vector_registers = 0; /**< float32 lanes of a vector, and vector registers, on a CPU. */
    double ghz = 0;
    double fma_per_cycle = 0;        /**< Vector multiply-adds that a core starts in a cycle; lanes on a GPU. */
    double fma_latency = 0;          /**< Cycles from a multiply-add to one that needs its result. */
    double load_per_cycle = 0;       /**< Vector loads that a core starts in a cycle; a warp's on a GPU. */
    std::vector<MemoryLevel> memory; /**< From the nearest level; the last is DRAM. */
    /** Time of a task: alpha_us for a vector operation (a warp's on a GPU), and gamma_us for starting it. Fitted by
     * least squares. */
    double alpha_us = 0, gamma_us = 0;
    double launch_us = 0; /**< Time of a call with nothing to compute. */

    // The limits of a multiprocessor.
    int max_threads = 0, max_blocks = 0, registers = 0, shared_banks = 0, shared_bytes = 0;
    /** Multiply-adds that its tensor cores start in a cycle, of 16-bit numbers and of TF32. */
    int tensor16_per_cycle = 0, tensor32_per_cycle = 0;

    /** The level of a name. Throws FileError if there is none. */
    const MemoryLevel &level(const std::string &level_name) const;

    /** Name, features and cores in words. Measurements of devices with different ids must not be mixed. */
    std::string id() const;
};

/** `where` names the place in messages, for instance the file. Throws FileError. */
DeviceProfile parse_device_profile(const nlohmann::json &json, const std::string &where);
DeviceProfile read_device_profile(const std::string &path);
nlohmann::json to_json(const DeviceProfile &device);

/** A profile that is compiled in, for devices that were never calibrated, by the name of its file in data/devices/.
 * Throws FileError for any other name. */
DeviceProfile generic_device_profile(const std::string &name);

/** Sets what follows from the features of a device and was not measured. */
void set_derived(DeviceProfile &device);

/** The name of the compiled-in profile for a Halide target. */
const char *generic_device_of(const std::string &target);

/** The Halide target of code for a device, as plans hold it: on this program's platform, or if the device is a CPU of
 * another architecture on the usual one of that. */
std::string halide_target(const DeviceProfile &device);
/** The Halide target of code for a device on a platform, whose architecture a CPU must have. */
std::string halide_target(const DeviceProfile &device, const Platform &platform);

}  // namespace distile

#endif
