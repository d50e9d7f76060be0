/** \file
 * Plan files: a PolyKernel as JSON, the link between tuning and building.
 *
 *     {"distile_plan": 1, "name": "conv3x3_256_avx512", "operator": {...}, "layout": "cpu-o16",
 *      "backend": "cpu", "target": "x86-64-linux-avx-avx2-...",
 *      "variants": [{"name": "p12c32", "theta": {"tile_h": 1, ...}},
 *                   {"name": "dense", "dense": true, "theta": {...}}],
 *      "profile": {"device": "...", "times": [{"variant": "p12c32", "threads": 2, "tiles": 160, "us": 410.5}, ...]}}
 *
 * docs/plans.md describes every member.
 */
#ifndef DISTILE_PLAN_H
#define DISTILE_PLAN_H

#include "operator.h"
#include "space.h"
#include <cstdint>
#include <vector>

namespace distile {

struct PlanVariant {
    std::string name;
    Theta theta;
    bool dense = false;
};

/** A measured time: a variant took `microseconds` for `tiles` tiles with `threads` threads. */
struct PlanTime {
    std::string variant;
    int threads;
    int64_t tiles;
    double microseconds;
};

struct Plan {
    std::string name;
    Operator op;
    std::string layout, backend;
    std::string target; /**< A Halide target, without user_context and no_runtime. */
    std::vector<PlanVariant> variants;
    std::string profiled_device; /**< Where `times` were measured; "" if they were not. */
    std::vector<PlanTime> times;

    /** The variant of a name, or of an index in decimal; null if there is none. */
    const PlanVariant *find(const std::string &name_or_index) const;
};

/** Throws FileError that says which member is wrong. Does not check thetas against a space. */
Plan read_plan(const std::string &path);
nlohmann::json to_json(const Plan &plan);

/** A schedule: knobs by name, tile_h and tile_w among them. Throws FileError. Asks no space whether it is legal. */
Theta parse_theta(const nlohmann::json &json, const std::string &where);

/** The output channels in a block of the weights of a backend, "cpu" or "cuda", and the layout that they give its name.
 */
int channel_block_of(const std::string &backend);
std::string layout_of(const std::string &backend);

/** The rows of a time table as plans and time tables hold them. */
nlohmann::json to_json(const std::vector<PlanTime> &times);

/** The CPU features that code for a Halide target needs, named as the runtime names them and separated by
 * spaces. Throws FileError for a feature that the runtime cannot check. */
std::string cpu_features(const std::string &target);

/** The compute capability that the GPU code of a Halide target needs, for instance 70; 0 for a CPU's target. */
int compute_capability(const std::string &target);

/** The name of the generated function of a variant; its argv form has "_argv" behind it. `index` is the plan's in its
 * chain. DistilePolykernel.cmake makes the same. */
std::string function_name(const std::string &symbol, size_t index, const std::string &variant);

/** The C source of a chain of distile_polykernels, one for each plan, of which only the first has a visible name,
 * `symbol`: each stands for CPUs that lack a feature of those before it. Throws FileError if the plans are of different
 * operators or layouts, two have one name, or one would never be taken. */
std::string emit_polykernels(const std::vector<Plan> &plans, const std::string &symbol);

}  // namespace distile

#endif
