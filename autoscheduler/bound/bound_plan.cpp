#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/bound/bound_backend.h"
#include "autoscheduler/bound/greedy.h"
#include "autoscheduler/bound/rank.h"
#include "plans/bitmap.h"
#include "plans/dot_product.h"
#include "plans/nonzeros.h"
#include "plans/tensor_core.h"
#include "plans/two_four.h"
#include <algorithm>
#include <cmath>

namespace distile {

namespace {

/** What the code of a schedule costs beside its time: of schedules that differ by less than the bound can know, the one
 * with the least code is compiled soonest. */
double size_factor(const Workload &workload, const Theta &theta) {
    const Bound any = bound(workload, theta, 1);
    const auto unrolled = any.terms.find("unrolled");
    return unrolled == any.terms.end() ? 1 : 1 + .002 * std::log2(unrolled->second);
}

/** The schedules of a workload that the bound ranks best, with the finest tiles where coarser ones gain nothing. Their
 * bounds count the size of the code, too. */
std::vector<Candidate> best_of(const Workload &workload, const std::vector<double> &densities, int64_t count) {
    std::vector<Bucket> buckets;
    for (const double density : densities) {
        buckets.push_back(density_bucket(workload, density));
    }
    RankOptions options;
    options.keep = 0;
    options.per_bucket = count;
    // Code for tensor cores gathers single pixels as fast as tiles, and copies boxes where every pixel is active. Dot
    // products skip inactive pixels. Where zeros are skipped, pixels side by side share what they read.
    const bool has_inactive = std::any_of(densities.begin(), densities.end(), [](double d) { return d < 1; });
    const bool gathers = (workload.problem.tensor_cores && (has_inactive || workload.height == 1)) ||
                         workload.problem.reads_bitmap || workload.problem.sparse_cores;
    const bool coarse = bound_backend(workload.device.backend).coarse_tiles || workload.problem.skips_zeros;
    if (!coarse || gathers || workload.problem.dot_products) {
        options.held = {{"tile_h", workload.problem.scale_h}, {"tile_w", workload.problem.scale_w}};
    }
    std::vector<Candidate> candidates = rank(workload, buckets, options).kept;
    for (Candidate &candidate : candidates) {
        const double factor = size_factor(workload, candidate.theta);
        for (double &us : candidate.us) {
            us *= factor;
        }
    }
    return candidates;
}

/** Up to `most` candidates that together have the least mean ratio to the best of each bucket, each at least a percent
 * less than those before. */
std::vector<Theta> choose(const std::vector<Candidate> &candidates, int most) {
    Costs least(candidates.front().us.size(), INFINITY);
    for (const Candidate &candidate : candidates) {
        least = minimum(std::move(least), candidate.us);
    }
    std::vector<Costs> ratios;
    for (const Candidate &candidate : candidates) {
        ratios.push_back(candidate.us);
        std::transform(least.begin(), least.end(), ratios.back().begin(), ratios.back().begin(),
                       [](double best, double us) { return us / best; });
    }
    std::vector<Theta> chosen;
    for (const int member : choose_greedily(Costs(least.size(), INFINITY), ratios, most, .01).members) {
        chosen.push_back(candidates[member].theta);
    }
    return chosen;
}

/** Numbers of tiles from one to all, each about twice the one before. */
std::vector<int64_t> doubled(int64_t all) {
    std::vector<int64_t> counts;
    for (int64_t count = 1; count < all; count *= 2) {
        counts.push_back(count);
    }
    counts.push_back(all);
    return counts;
}

/** In how many knobs two schedules differ. */
int differences(const Theta &a, const Theta &b) {
    int count = 0;
    for (const auto &[knob, value] : a) {
        count += b.at(knob) != value ? 1 : 0;
    }
    return count;
}

/** Adds the first candidate of each order in turn that differs from all chosen ones in enough knobs, up to `count`. */
void add_in_turns(const std::vector<std::vector<const Candidate *>> &orders, int least_differences, size_t count,
                  std::vector<Theta> &chosen) {
    const auto is_new = [&](const Candidate *candidate) {
        return std::all_of(chosen.begin(), chosen.end(), [&](const Theta &other) {
            return differences(candidate->theta, other) >= least_differences;
        });
    };
    std::vector<std::vector<const Candidate *>::const_iterator> next;
    for (const auto &order : orders) {
        next.push_back(order.begin());
    }
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < orders.size() && chosen.size() < count; i++) {
            next[i] = std::find_if(next[i], orders[i].end(), is_new);
            if (next[i] != orders[i].end()) {
                chosen.push_back((*next[i])->theta);
                more = true;
            }
        }
    }
}

/** Whether every CPU of its platform runs code for a target. */
bool is_portable(const std::string &target) {
    return portable_backend().features_of(target) == find_platform(target)->architecture.everywhere;
}

/** On an H200, code from Halide takes 1.4 to 2 times as long as its bound says, and code for nonzero weights up to 1.25
 * times. Between them, the lesser gap counts. */
void stretch_times_of_halide(Plan &plan) {
    constexpr double gap = 1.4;
    for (PlanTime &time : plan.times) {
        const auto variant = std::find_if(plan.variants.begin(), plan.variants.end(),
                                          [&](const PlanVariant &one) { return one.name == time.variant; });
        time.microseconds *= variant->language == Language::Halide ? gap : 1;
    }
}

/** The name of a plan for tensor cores: "conv_tf32_sm90". */
std::string tensor_core_plan_name(const Operator &op, Math math, const DeviceProfile &device) {
    std::string level = device.features;
    level.erase(std::remove(level.begin(), level.end(), '_'), level.end());
    return op.name + (math == Math::TF32 ? "_tf32_" : "_") + level;
}

}  // namespace

std::vector<Theta> best_by_bound(const Workload &workload, const std::vector<double> &densities, size_t count) {
    const std::vector<Candidate> candidates = best_of(workload, densities, 200);
    std::vector<std::vector<const Candidate *>> orders(densities.size());
    for (size_t b = 0; b < densities.size(); b++) {
        for (const Candidate &candidate : candidates) {
            orders[b].push_back(&candidate);
        }
        std::stable_sort(orders[b].begin(), orders[b].end(),
                         [&](const Candidate *left, const Candidate *right) { return left->us[b] < right->us[b]; });
    }
    std::vector<Theta> chosen;
    add_in_turns(orders, 2, count, chosen);
    // Where too few differ so much.
    add_in_turns(orders, 1, count, chosen);
    return chosen;
}

Plan bound_plan(const std::string &name, const Operator &op, const DeviceProfile &device, int masked) {
    return bound_plan(name, op, device, {target_for(op, device), Math::Float32}, masked);
}

Plan bound_plan(const std::string &name, const Operator &op, const DeviceProfile &device, const CodeChoice &code,
                int masked) {
    Workload workload = workload_of(op, device, code);
    Plan plan = make_plan(name, op, get_backend(device.backend), code);
    plan.profiled_device = "none: the bound for a " + device.name;
    const std::vector<double> densities = {.02, .05, .1, .2, .35, .5, .75};
    for (const Theta &theta : choose(best_of(workload, densities, 100), masked)) {
        add_variant(plan, "masked_" + std::to_string(plan.variants.size() + 1), theta, false);
    }
    const std::vector<Theta> dense = choose(best_of(workload, {1}, 20), 1);
    add_variant(plan, "dense", dense.front(), true);
    for (const int threads : bound_backend(device.backend).plan_threads) {
        workload.threads = threads;
        for (const PlanVariant &variant : plan.variants) {
            const int64_t all = density_bucket(workload, 1).tiles(variant.tile_h(), variant.tile_w());
            for (const int64_t tiles : variant.dense ? std::vector<int64_t>{all} : doubled(all)) {
                plan.times.push_back({variant.name, threads, tiles, bound(workload, variant.theta, tiles).us});
            }
        }
    }
    if (plan.has(Language::Nonzeros) || plan.has(Language::Bitmap) || plan.has(Language::TwoFour)) {
        // Weights with fewer zeros, and masks with most pixels, may be faster so.
        Plan all_weights = bound_plan(name, with_all_weights(op), device, {code.target, code.math}, 1);
        if (plan.backend == cuda_backend().name) {
            stretch_times_of_halide(all_weights);
        }
        add_variants(plan, all_weights, all_weights_prefix);
    }
    return plan;
}

std::string level_of(const std::string &target) {
    const std::string generic = generic_device_of(target), word = word_of_dot_products(target);
    return word.empty() ? generic.substr(generic.find('_') + 1) : word;
}

std::vector<PlannedCode> planned_codes(const Operator &op, const Backend &backend, bool tensor_cores,
                                       const Platform &platform) {
    const BoundBackend &bounds = bound_backend(backend.name);
    std::vector<PlannedCode> planned;
    const Math math = op.dtype().dtype == DISTILE_FLOAT32 ? Math::TF32 : Math::Float32;
    // A plan that reads a bitmap of weights has code for tensor cores and all weights, too.
    const bool on_bitmap = tensor_cores && &backend == &cuda_backend() && reads_bitmap(op);
    for (const char *profile : tensor_cores && !on_bitmap ? bounds.tensor_core_profiles : std::vector<const char *>{}) {
        const DeviceProfile device = generic_device_profile(profile);
        const std::string best = bounds.tensor_core_targets(device.features).front();
        // If it is not for the device's own tensor cores, the code is that of another profile.
        if (why_not_on_tensor_cores(op, tensor_cores_of(backend.features_of(best))).empty()) {
            // A plan for two of four weights has such code, too.
            planned.push_back({tensor_core_plan_name(op, math, device) + (keeps_two_of_four(op) ? "_two_four" : ""),
                               device, choose_code(op, device, "", math)});
        }
    }
    for (const char *profile : bounds.profiles(platform.architecture)) {
        const DeviceProfile device = generic_device_profile(profile);
        const bool on_cpus = &backend == &portable_backend();
        const bool is_plain = on_cpus || (reads_bitmap(op) && !on_bitmap) || keeps_two_of_four(op);
        const std::string level = is_plain ? halide_target(device, platform) : target_for(op, device, platform);
        std::vector<std::string> targets =
            on_cpus ? targets_of_dot_products(op, platform, level) : std::vector<std::string>{};
        // Quantized code for CPUs is all of this kind.
        if (targets.empty() || !op.is_quantized()) {
            targets.push_back(level);
        }
        for (const std::string &target : targets) {
            // What any CPU runs has a portable plan.
            if (!on_cpus || !is_portable(target)) {
                // Throws where there is no code.
                const std::string name = op.name + "_" + level_of(target), plain = halide_target(device, platform);
                const CodeChoice code = choose_code(op, device, target, Math::Float32);
                const bool skips = !on_cpus && language_of(op, code) == Language::Nonzeros,
                           reads = !on_cpus && language_of(op, code) == Language::Bitmap;
                // Few tokens make few blocks. As many as large GPUs need cost others little.
                planned.push_back({skips   ? name + "_nonzeros"
                                   : reads ? name + "_bitmap"
                                           : name,
                                   reads ? generic_device_profile(bounds.tensor_core_profiles.front()) : device, code});
                if (skips || reads) {
                    // For older GPUs.
                    planned.push_back({name, device, choose_code(op, device, plain, Math::Float32)});
                }
            }
        }
    }
    return planned;
}

std::vector<Plan> bound_plans(const Operator &op, const Backend &backend, bool tensor_cores, const Platform &platform) {
    std::vector<Plan> plans;
    for (const PlannedCode &planned : planned_codes(op, backend, tensor_cores, platform)) {
        plans.push_back(bound_plan(planned.name, op, planned.device, planned.code));
    }
    return plans;
}

const Backend &portable_backend() {
    return cpu_backend();
}

bool is_portable(const Plan &plan) {
    return plan.backend == portable_backend().name && is_portable(plan.target);
}

Plan portable_plan(const Operator &op, const Platform &platform) {
    const DeviceProfile device = generic_device_profile(platform.architecture.levels.back().profile);
    const CodeChoice code = choose_code(op, device, halide_target(device, platform), Math::Float32);
    const Workload workload = workload_of(op, device, code);
    Plan plan = make_plan(op.name + "_portable", op, portable_backend(), code);
    const auto add = [&](const char *name, double density, bool dense) {
        RankOptions options;
        options.keep = 0;
        options.per_bucket = 1;
        // The finest tiles. Unrolled little, because every operator pays for compiling it and few CPUs run it.
        options.held = {{"tile_h", workload.problem.scale_h}, {"tile_w", workload.problem.scale_w}};
        if (!workload.problem.dot_products && !workload.problem.skips_zeros) {
            options.held["unroll"] = 1;
        }
        add_variant(plan, name, rank(workload, {density_bucket(workload, density)}, options).kept.front().theta, dense);
    };
    add("fine", .3, false);
    add("dense", 1, true);
    return plan;
}

}  // namespace distile
