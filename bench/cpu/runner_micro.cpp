// The rows of the runner that measure single steps.
#include "bench/cpu/runner.h"
#include "bench/harness/algebra.h"
#include "bench/harness/machine.h"
#include "kernels/call.h"
#include "runtime/base/thread_pool.h"
#include <atomic>
#include <chrono>
#include <ctime>
#include <fmt/core.h>
#include <functional>
#include <thread>
#include <utility>

namespace distile::bench {

namespace {

/** Calls of a few microseconds that make one sample. */
constexpr int32_t calls_per_sample = 64;

/** The dispatcher's rows share an operator and the PolyKernel that this CPU takes for it. */
struct Dispatched {
    Dispatched(const Context &context, const RunnerOptions &options, const OperatorSpec &spec, Json &result)
        : op(find_operator(options.operators_path, spec)), kernel(make_kernel(context, *op.polykernel)),
          polykernel(taken_polykernel(*op.polykernel, kernel)), mask(make_mask(context)) {
        result["op"] = spec.name;
        result["threads"] = options.threads;
        result["kernel"] = polykernel.name;
    }

    BenchOperator op;
    Kernel kernel;
    const distile_polykernel &polykernel;
    Mask mask;
};

/** The CPU time of this process so far, in microseconds. */
double cpu_time_us() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

/** Calls in a thread of its own, until the end of its life. */
class InBackground {
public:
    explicit InBackground(std::function<void()> call)
        : thread_([this, call = std::move(call)] {
              while (!stop_) {
                  call();
              }
          }) {
    }
    ~InBackground() {
        stop_ = true;
        thread_.join();
    }
    InBackground(const InBackground &) = delete;
    InBackground &operator=(const InBackground &) = delete;

private:
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace

void Runner::measure(const MaskRow &row, Json &result) const {
    result["kind"] = "mask";
    result["threads"] = 1;
    result["mask"] = row.mask.name;
    result["density"] = row.mask.density;
    const Context context = make_bench_context(1);
    const Mask mask = make_mask(context);
    const std::vector<ByteMask> masks = make_byte_masks(row.mask, 1, row.height, row.width);
    size_t next = 0;
    const Spread spread = measure_calls(
        [&] {
            const ByteMask &bytes = masks[next++ % masks.size()];
            distile_tile_list list{};
            int64_t count = 0;
            set_mask(context, mask, bytes);
            check(context, distile_mask_count_tiles(mask.get(), 1, 1, &count));
            check(context, distile_mask_tiles(mask.get(), 1, 1, &list));
        },
        calls_per_sample, options_.measure);
    add_times(result, spread);
    add_goal(result, row.goal_us);
}

void Runner::measure(const SelectRow &row, Json &result) {
    result["kind"] = "select";
    const Dispatched own(context_, options_, row.op, result);
    set_mask(context_, own.mask, make_byte_mask({"blob", 0.3, 1}, 1, own.op.output_height(), own.op.output_width()));
    distile_choice choice{};
    // The warm-up makes the counts; they are then kept with the mask.
    const Spread spread =
        measure_calls([&] { check(context_, distile_kernel_choose(own.kernel.get(), own.mask.get(), &choice)); },
                      calls_per_sample, options_.measure);
    result["variants"] = own.polykernel.num_variants;
    result["has_times"] = own.polykernel.num_times > 0;
    add_times(result, spread);
    add_goal(result, row.goal_us);
}

void Runner::measure(const DispatchRow &row, Json &result) {
    result["kind"] = "dispatch";
    const Dispatched own(context_, options_, row.op, result);
    // The operator's own variants and times, with code that does nothing.
    distile_polykernel polykernel = own.polykernel;
    std::vector<distile_variant> variants(polykernel.variants, polykernel.variants + polykernel.num_variants);
    for (distile_variant &variant : variants) {
        variant.run = [](const distile_kernel_call *) { return 0; };
    }
    polykernel.variants = variants.data();
    polykernel.fallback = nullptr;
    const Kernel kernel = make_kernel(context_, polykernel);

    Problem problem(own.op, 1);
    const Weights weights = pack_weights(context_, kernel, problem.weights());
    const AlignedFloats output_memory(problem.output_size());
    const distile_tensor output = problem.output(output_memory.data());
    const std::vector<ByteMask> masks = make_byte_masks({"blob", 0.3, 1}, 1, output.height, output.width);
    distile_run_args args{};
    args.input = &problem.input(true);
    args.output = &output;
    args.weights = weights.get();
    args.mask = own.mask.get();
    size_t next = 0;
    const Spread spread = measure_calls(
        [&] {
            set_mask(context_, own.mask, masks[next++ % masks.size()]);
            check(context_, distile_run(kernel.get(), &args));
        },
        calls_per_sample, options_.measure);
    add_times(result, spread);
}

void Runner::measure(const AlgebraRow &row, Json &result) const {
    result["kind"] = "algebra";
    result["function"] = row.function;
    result["threads"] = 1;
    result["mask"] = row.mask.name;
    result["density"] = row.mask.density;
    const Context context = make_bench_context(1);
    const Mask made = make_mask(context);
    const auto function = find_algebra(row.function, row.height, row.width);
    const std::vector<ByteMask> bytes = make_byte_masks(row.mask, 1, function.height, function.width);
    std::vector<Mask> masks;
    masks.reserve(bytes.size());
    for (const ByteMask &one : bytes) {
        masks.push_back(make_mask(context));
        set_mask(context, masks.back(), one);
    }
    size_t next = 0;
    const Spread spread = measure_calls(
        [&] {
            distile_mask *const a = masks[next % masks.size()].get(), *const b = masks[(next + 1) % masks.size()].get();
            next++;
            check(context, function.call(made.get(), a, b));
        },
        calls_per_sample, options_.measure);
    add_times(result, spread);
    add_goal(result, row.goal_us);
}

void Runner::measure(const PoolRow &row, Json &result) {
    result["kind"] = "pool";
    result["threads"] = options_.threads;
    ThreadPool pool(options_.threads), other(options_.threads);
    double task_us = row.task_us;
    const auto task = [](void *closure, int32_t) {
        using Clock = std::chrono::steady_clock;
        const std::chrono::duration<double, std::micro> wait(*static_cast<double *>(closure));
        const Clock::time_point start = Clock::now();
        while (Clock::now() - start < wait) {}
    };
    const auto call = [&] { pool.parallel_for(task, &task_us, row.tasks); };
    const Spread spread = measure_calls(call, calls_per_sample, options_.measure);
    const int32_t turns = (row.tasks + options_.threads - 1) / options_.threads;
    add_times(result, spread);
    result["ideal_us"] = turns * row.task_us;
    result["overhead_us"] = std::stod(fmt::format("{:.4g}", spread.median - turns * row.task_us));
    // What idle workers cost, their spin after the call included.
    constexpr std::chrono::seconds idle(1);
    const double before = cpu_time_us();
    call();
    std::this_thread::sleep_for(idle);
    result["idle_cpu_us"] = std::stod(fmt::format("{:.4g}", cpu_time_us() - before - row.tasks * row.task_us));
    // Beside a second pool of as many threads, each has half of the cores.
    const InBackground rival([&] { other.parallel_for(task, &task_us, row.tasks); });
    const Spread shared = measure_calls(call, calls_per_sample, options_.measure);
    result["beside_another_us"] = std::stod(fmt::format("{:.4g}", shared.median));
}

}  // namespace distile::bench
