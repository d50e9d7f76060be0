#include "portable.h"
#include "rank.h"

namespace distile {

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
