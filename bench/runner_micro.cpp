// The rows of the runner that measure single steps.
#include "machine.h"
#include "runner.h"
#include "thread_pool.h"
#include <chrono>
#include <fmt/core.h>

namespace distile::bench {

namespace {

void add_times(Json &result, const Spread &spread, int32_t rounds) {
    const auto rounded = [](double value) { return std::stod(fmt::format("{:.4g}", value)); };
    result["t_us"] = rounded(spread.median);
    result["us"] = {{"min", rounded(spread.minimum)},
                    {"q1", rounded(spread.first_quartile)},
                    {"median", rounded(spread.median)},
                    {"q3", rounded(spread.third_quartile)}};
    result["rounds"] = rounds;
}

void add_goal(Json &result, const Spread &spread, double goal_us) {
    result["goal_us"] = goal_us;
    result["met"] = spread.median < goal_us;
}

/** Calls of a few microseconds that make one sample. */
constexpr int32_t calls_per_sample = 64;

}  // namespace

void Runner::measure(const MaskRow &row, Json &result) const {
    result["kind"] = "mask";
    result["threads"] = 1;
    result["mask"] = row.mask.name;
    result["density"] = row.mask.density;
    distile_context_options one_thread{};
    one_thread.threads = 1;
    const Context context = make_context(one_thread);
    const Mask mask = make_mask(context);

    // Masks of several seeds take turns: the branches of one mask would be learnt by heart.
    constexpr size_t num_masks = 8;
    std::vector<ByteMask> masks;
    for (size_t i = 0; i < num_masks; i++) {
        MaskSpec spec = row.mask;
        spec.seed += i;
        masks.push_back(make_byte_mask(spec, 1, row.height, row.width));
    }
    size_t next = 0;
    int32_t rounds = 0;
    const Spread spread = measure_calls(
        [&] {
            const ByteMask &bytes = masks[next++ % num_masks];
            distile_tile_list list{};
            int64_t count = 0;
            check(context, distile_mask_set_bytes(mask.get(), bytes.bytes.data(), 1, row.height, row.width,
                                                  int64_t{row.height} * row.width, row.width));
            check(context, distile_mask_count_tiles(mask.get(), 1, 1, &count));
            check(context, distile_mask_tiles(mask.get(), 1, 1, &list));
        },
        calls_per_sample, options_.measure, &rounds);
    add_times(result, spread, rounds);
    add_goal(result, spread, row.goal_us);
}

void Runner::measure(const SelectRow &row, Json &result) {
    result["kind"] = "select";
    result["op"] = row.op.name;
    result["threads"] = options_.threads;
    const Operator op = find_operator(options_.operators_path, row.op, cpu_polykernel(row.op.polykernel));
    const Kernel kernel = make_kernel(context_, *op.polykernel);
    const distile_polykernel *polykernel = distile_kernel_polykernel(kernel.get());
    const Mask mask = make_mask(context_);
    const ByteMask bytes = make_byte_mask({"blob", 0.3, 1}, 1, op.output_height(), op.output_width());
    check(context_, distile_mask_set_bytes(mask.get(), bytes.bytes.data(), 1, bytes.height, bytes.width,
                                           int64_t{bytes.height} * bytes.width, bytes.width));
    distile_choice choice{};
    int32_t rounds = 0;
    // The warm-up makes the counts; they are then kept with the mask.
    const Spread spread =
        measure_calls([&] { check(context_, distile_kernel_choose(kernel.get(), mask.get(), &choice)); },
                      calls_per_sample, options_.measure, &rounds);
    result["kernel"] = polykernel->name;
    result["variants"] = polykernel->num_variants;
    result["has_times"] = polykernel->num_times > 0;
    add_times(result, spread, rounds);
    add_goal(result, spread, row.goal_us);
}

void Runner::measure(const PoolRow &row, Json &result) {
    result["kind"] = "pool";
    result["threads"] = options_.threads;
    ThreadPool pool(options_.threads);
    double task_us = row.task_us;
    const auto task = [](void *closure, int32_t) {
        using Clock = std::chrono::steady_clock;
        const std::chrono::duration<double, std::micro> wait(*static_cast<double *>(closure));
        const Clock::time_point start = Clock::now();
        while (Clock::now() - start < wait) {}
    };
    int32_t rounds = 0;
    const Spread spread = measure_calls([&] { pool.parallel_for(task, &task_us, row.tasks); }, calls_per_sample,
                                        options_.measure, &rounds);
    const int32_t turns = (row.tasks + options_.threads - 1) / options_.threads;
    add_times(result, spread, rounds);
    result["ideal_us"] = turns * row.task_us;
    result["overhead_us"] = std::stod(fmt::format("{:.4g}", spread.median - turns * row.task_us));
}

}  // namespace distile::bench
