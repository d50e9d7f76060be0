/** \file
 * What the ranking of schedules knows of each backend: its space, what its device profiles hold, and the terms of its
 * bound. A further backend is one file in backends/ that defines its BoundBackend, and one row in bound_backend.cpp.
 */
#ifndef DISTILE_BOUND_BACKEND_H
#define DISTILE_BOUND_BACKEND_H

#include "autoscheduler/bound/bound_sinks.h"
#include "plans/architecture.h"
#include "plans/backend.h"
#include <optional>
#include <string>
#include <vector>

namespace distile {

/** How a kind of schedule is judged. */
struct BoundTerms {
    /** The knobs that the bound knows, in the order in which it takes their values. */
    const std::vector<std::string> &(*knobs)();
    /** The needs of a GPU's block, of a theta and the values that the bound knows of it; null where these suffice. */
    BlockNeeds (*block)(const Workload &workload, const Theta &theta, const BoundKnobs &knobs);
    std::vector<const char *> beside_block; /**< Knobs that do not change them. */
    void (*named)(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm form, NamedTerms &sink);
    void (*times)(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm form, TimesAlone &sink);
};

/** A member of device profiles that only one backend has. */
struct ProfileField {
    const char *name;
    int DeviceProfile::*value;
    int most;
    /** What a profile without it has, by the device's features; null: every profile must have it. */
    int (*default_value)(const std::string &features) = nullptr;
};

/** A kind of device, for which `distile info` counts the legal schedules of an operator. */
struct KnownSpace {
    const char *name;
    int lanes, registers;
    /** The tensor cores, or the instructions for dot products, that the code uses. Without both, Halide makes it. */
    std::optional<TensorCores> tensor_cores = std::nullopt;
    std::optional<DotProducts> dot_products = std::nullopt;
};

struct BoundBackend {
    const Backend &backend;
    const Space &(*space)(const Problem &problem);
    /** Lanes and registers are those of device profiles. */
    Problem (*problem)(const OperatorFacts &op, int lanes, int registers);
    /** The vectors of code for a Halide target, as the plugin has them. */
    Vectors (*vectors_of)(const std::string &target);
    const BoundTerms &(*model)(const Problem &problem);
    std::vector<ProfileField> fields;
    std::vector<const char *> levels; /**< The levels of memory in profiles; none: any, the nearest first. */
    std::vector<KnownSpace> spaces;
    bool coarse_tiles; /**< A schedule may compute a tile in less time than its pixels apart. */
    /** The built-in profiles, one for each level of devices with CPUs of an architecture, the most demanding first. */
    std::vector<const char *> (*profiles)(const Architecture &architecture);
    std::vector<int> plan_threads; /**< Numbers of threads that the times of the bound's plans are for. */
    /** The targets of code for the tensor cores of a device with such features, the best first; none: it has no tensor
     * cores. */
    std::vector<std::string> (*tensor_core_targets)(const std::string &features);
    /** The built-in profiles that stand for the devices of plans for tensor cores, the most demanding first. */
    std::vector<const char *> tensor_core_profiles;
};

const BoundBackend &cpu_bound_backend();
const BoundBackend &cuda_bound_backend();
const BoundBackend &opencl_bound_backend();

const std::vector<const BoundBackend *> &bound_backends();
/** Throws FileError if there is none of this name. */
const BoundBackend &bound_backend(const std::string &name);

}  // namespace distile

#endif
