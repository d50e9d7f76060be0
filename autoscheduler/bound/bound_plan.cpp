#include "bound_plan.h"
#include "bound_backend.h"
#include "rank.h"
#include <algorithm>
#include <cmath>

namespace distile {

namespace {

/** The schedules of a workload that the bound ranks best, with the finest tiles where coarser ones gain nothing. */
std::vector<Candidate> best_of(const Workload &workload, const std::vector<double> &densities, int64_t count) {
    std::vector<Bucket> buckets;
    for (const double density : densities) {
        buckets.push_back(density_bucket(workload, density));
    }
    RankOptions options;
    options.keep = 0;
    options.per_bucket = count;
    if (!bound_backend(workload.device.backend).coarse_tiles) {
        options.held = {{"tile_h", workload.problem.scale_h}, {"tile_w", workload.problem.scale_w}};
    }
    return rank(workload, buckets, options).kept;
}

/** What the code of a schedule costs beside its time: of schedules that differ by less than the bound can know, the one
 * with the least code is compiled soonest. */
double size_factor(const Workload &workload, const Theta &theta) {
    const Bound any = bound(workload, theta, 1);
    const auto unrolled = any.terms.find("unrolled");
    return unrolled == any.terms.end() ? 1 : 1 + .002 * std::log2(unrolled->second);
}

/** Adds the candidate that lowers the mean ratio to the best bound of each bucket most, until none lowers it by a
 * percent. */
std::vector<Theta> choose(const Workload &workload, const std::vector<Candidate> &candidates, int most) {
    const size_t buckets = candidates.front().us.size();
    std::vector<double> least(buckets, INFINITY), sizes;
    for (const Candidate &candidate : candidates) {
        for (size_t b = 0; b < buckets; b++) {
            least[b] = std::min(least[b], candidate.us[b]);
        }
        sizes.push_back(size_factor(workload, candidate.theta));
    }
    std::vector<double> ratios(buckets, INFINITY);
    std::vector<Theta> chosen;
    double mean = INFINITY;
    while (static_cast<int>(chosen.size()) < most) {
        double best_mean = INFINITY;
        std::vector<double> best_ratios;
        const Candidate *best = nullptr;
        for (size_t i = 0; i < candidates.size(); i++) {
            std::vector<double> with = ratios;
            double sum = 0;
            for (size_t b = 0; b < buckets; b++) {
                with[b] = std::min(with[b], candidates[i].us[b] / least[b] * sizes[i]);
                sum += with[b];
            }
            if (sum / static_cast<double>(buckets) < best_mean) {
                best_mean = sum / static_cast<double>(buckets);
                best_ratios = with;
                best = &candidates[i];
            }
        }
        if (best_mean > mean * .99) {
            break;
        }
        mean = best_mean;
        ratios = best_ratios;
        chosen.push_back(best->theta);
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

}  // namespace

std::vector<Theta> best_by_bound(const Workload &workload, const std::vector<double> &densities, size_t count) {
    const std::vector<Candidate> candidates = best_of(workload, densities, 200);
    std::vector<std::vector<const Candidate *>> orders(densities.size());
    for (size_t b = 0; b < densities.size(); b++) {
        for (const Candidate &candidate : candidates) {
            orders[b].push_back(&candidate);
        }
        std::stable_sort(orders[b].begin(), orders[b].end(), [&](const Candidate *left, const Candidate *right) {
            return left->us[b] * size_factor(workload, left->theta) <
                   right->us[b] * size_factor(workload, right->theta);
        });
    }
    std::vector<Theta> chosen;
    // Where too few differ in two knobs, in one.
    for (const int least_differences : {2, 1}) {
        std::vector<size_t> next(densities.size());
        for (bool more = true; more && chosen.size() < count;) {
            more = false;
            for (size_t b = 0; b < densities.size() && chosen.size() < count; b++) {
                const auto is_new = [&](const Candidate *candidate) {
                    return std::all_of(chosen.begin(), chosen.end(), [&](const Theta &other) {
                        return differences(candidate->theta, other) >= least_differences;
                    });
                };
                while (next[b] < orders[b].size() && !is_new(orders[b][next[b]])) {
                    next[b]++;
                }
                if (next[b] < orders[b].size()) {
                    chosen.push_back(orders[b][next[b]]->theta);
                    more = true;
                }
            }
        }
    }
    return chosen;
}

Plan bound_plan(const std::string &name, const Operator &op, const DeviceProfile &device, int masked) {
    Workload workload = workload_of(op, device);
    Plan plan = make_plan(name, op, get_backend(device.backend), halide_target(device));
    plan.profiled_device = "none: the bound for a " + device.name;
    const std::vector<double> densities = {.02, .05, .1, .2, .35, .5, .75};
    for (const Theta &theta : choose(workload, best_of(workload, densities, 100), masked)) {
        plan.variants.push_back({"masked_" + std::to_string(plan.variants.size() + 1), theta, false, "", "", ""});
    }
    const std::vector<Theta> dense = choose(workload, best_of(workload, {1}, 20), 1);
    plan.variants.push_back({"dense", dense.front(), true, "", "", ""});
    for (const int threads : bound_backend(device.backend).plan_threads) {
        workload.threads = threads;
        for (const PlanVariant &variant : plan.variants) {
            const int64_t all = density_bucket(workload, 1).tiles(variant.tile_h(), variant.tile_w());
            for (const int64_t tiles : variant.dense ? std::vector<int64_t>{all} : doubled(all)) {
                plan.times.push_back({variant.name, threads, tiles, bound(workload, variant.theta, tiles).us});
            }
        }
    }
    return plan;
}

std::string plan_name(const Operator &op, const DeviceProfile &device) {
    const std::string generic = generic_device_of(halide_target(device));
    return op.name + generic.substr(generic.find('_'));
}

std::vector<Plan> bound_plans(const Operator &op, const Backend &backend) {
    std::vector<Plan> plans;
    for (const char *profile : bound_backend(backend.name).plan_profiles) {
        const DeviceProfile device = generic_device_profile(profile);
        plans.push_back(bound_plan(plan_name(op, device), op, device));
    }
    return plans;
}

const Backend &portable_backend() {
    return cpu_backend();
}

Plan portable_plan(const Operator &op) {
    const Workload workload = workload_of(op, generic_device_profile("generic_x86_64"));
    Plan plan = make_plan(op.name + "_portable", op, portable_backend(), halide_target(workload.device));
    const auto add = [&](const char *name, double density, bool dense) {
        RankOptions options;
        options.keep = 0;
        options.per_bucket = 1;
        // The finest tiles. Unrolled little, because every operator pays for compiling it and few CPUs run it.
        options.held = {{"tile_h", workload.problem.scale_h}, {"tile_w", workload.problem.scale_w}, {"unroll", 1}};
        plan.variants.push_back(
            {name, rank(workload, {density_bucket(workload, density)}, options).kept.front().theta, dense, "", "", ""});
    };
    add("fine", .3, false);
    add("dense", 1, true);
    return plan;
}

}  // namespace distile
