#include "portable.h"
#include "rank.h"

namespace distile {

Plan portable_plan(const Operator &op) {
    const Workload workload = workload_of(op, generic_device_profile("generic_x86_64"));
    Plan plan;
    plan.name = op.name + "_portable";
    plan.op = op;
    plan.backend = "cpu";
    plan.layout = layout_of(plan.backend);
    plan.target = halide_target(workload.device);
    // `tile` counts phases at once, where the operator has them.
    const auto add = [&](const char *name, int tile, double density, bool dense) {
        RankOptions options;
        options.keep = 0;
        options.per_bucket = 1;
        // Unrolled little, because every operator pays for compiling it and few CPUs run it.
        options.held = {
            {"tile_h", tile * workload.problem.scale_h}, {"tile_w", tile * workload.problem.scale_w}, {"unroll", 1}};
        plan.variants.push_back(
            {name, rank(workload, {density_bucket(workload, density)}, options).kept.front().theta, dense});
    };
    add("fine", 1, .3, false);
    add("coarse", 4, .3, false);
    add("dense", 1, 1, true);
    return plan;
}

}  // namespace distile
