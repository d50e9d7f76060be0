/** \file
 * Plan files: a PolyKernel as JSON, the link between tuning and building.
 *
 *     {"distile_plan": 2, "name": "conv3x3_256_avx512", "operator": {...}, "layout": "cpu-o16",
 *      "backend": "cpu", "target": "x86-64-linux-avx-avx2-...",
 *      "variants": [{"name": "p12c32", "code": {"halide": {"tile_h": 1, ...}}},
 *                   {"name": "dense", "dense": true, "code": {"halide": {...}}}],
 *      "profile": {"plan_hash": "0123456789abcdef", "device": "...",
 *                  "times": [{"variant": "p12c32", "threads": 2, "tiles": 160, "us": 410.5}, ...]}}
 *
 * docs/plans.md describes every member.
 */
#ifndef DISTILE_PLAN_H
#define DISTILE_PLAN_H

#include "plans/backend.h"
#include "plans/operator.h"
#include "schedules/space.h"
#include <cstdint>
#include <distile/polykernel.h>
#include <vector>

namespace distile {

/** How the code of float32 operators multiplies. */
enum class Math {
    Float32,
    TF32 /**< Both factors are rounded to 10 bits of mantissa; sums are float32. */
};

struct PlanVariant {
    std::string name;
    Theta theta; /**< A point of the space of its language. */
    bool dense = false;
    std::string layout; /**< The layout of the weights that its code reads; "": the plan's. */
    Language language = Language::Halide;
    distile_tile_order order = DISTILE_TILES_BY_ROWS; /**< Only on CPUs. */

    int tile_h() const {
        return theta.at("tile_h");
    }
    int tile_w() const {
        return theta.at("tile_w");
    }
};

/** As plans name it: "rows", "morton" or "hilbert". */
const char *order_name(distile_tile_order order);

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
    std::string target; /**< A Halide target, without user_context and no_runtime, or a later GPU's named alike. */
    Math math = Math::Float32;
    std::vector<PlanVariant> variants;
    std::string profiled_device; /**< Where `times` were measured; "" if they were not. */
    std::string doubt;           /**< Why `times` are doubtful, as a sentence without its end; "" if they are not. */
    std::vector<PlanTime> times;

    /** The variant of a name, or of an index in decimal; null if there is none. */
    const PlanVariant *find(const std::string &name_or_index) const;
    const std::string &layout_of(const PlanVariant &variant) const {
        return variant.layout.empty() ? layout : variant.layout;
    }
    /** Output channels in a block of the weights that a variant reads. */
    int channel_block(const PlanVariant &variant) const;
    bool has(Language language) const;
    /** What the code needs of a device, as a descriptor says it. */
    std::string features() const {
        return get_backend(backend).features_of(target);
    }
};

/** A plan with no variants yet, in the backend's first layout. */
Plan make_plan(const std::string &name, const Operator &op, const Backend &backend, const std::string &target);

/** What becomes of the times that a plan holds. */
enum class Times {
    Keep, /**< Keep them; refuse times of other code. */
    Drop  /**< Drop them: the code is compiled or measured again. */
};

/** Changes the type of a plan's operator. Its times are dropped: they are of the other type's code. */
void change_type(Plan &plan, const Operator &op);

/** Adds the variants and the times of another plan for the same operator, target and math, each under its name behind a
 * prefix. */
void add_variants(Plan &plan, const Plan &other, const std::string &prefix);

/** Throws FileError that says which member is wrong. Does not check thetas against a space. */
Plan read_plan(const std::string &path, Times times = Times::Keep);
nlohmann::json to_json(const Plan &plan);

/** Says which code a plan is of: its operator, target, math and variants, but no times. FNV-1a of their canonical JSON.
 */
uint64_t plan_hash(const Plan &plan);
/** The hash as files hold it: 16 hexadecimal digits. */
std::string plan_hash_text(const Plan &plan);

/** The time table of a plan as distile_kernel_load_times() reads it. */
nlohmann::json time_table_of(const Plan &plan);

/** Reads a schedule: knobs by name, tile_h and tile_w among them. Throws FileError. Checks it against no space. */
Theta parse_theta(const nlohmann::json &json, const std::string &where);

}  // namespace distile

#endif
