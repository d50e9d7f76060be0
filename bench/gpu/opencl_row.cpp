// The row of the runner that compares OpenCL with CUDA on one GPU.
#include "cuda_runner.h"
#include "masked_call.h"
#include "opencl_array.h"
#include <algorithm>
#include <chrono>
#include <cmath>

namespace distile::bench {

namespace {

std::vector<uint8_t> bytes_of_tensor(const TypedTensor &tensor) {
    return {tensor.memory(), tensor.memory() + tensor.bytes()};
}

/** A context on the GPU that is the first device of NVIDIA's OpenCL. Throws PeerMissing if there is none. */
Context open_opencl(distile_choice &traced) {
    distile_context_options options{};
    options.trace = [](void *user, const distile_choice *choice) { *static_cast<distile_choice *>(user) = *choice; };
    options.trace_user = &traced;
    distile_context *opened = nullptr;
    const distile_opencl_options opencl{};
    if (distile_opencl_context_create(&options, &opencl, &opened) != DISTILE_OK) {
        throw PeerMissing(distile_context_message(nullptr));
    }
    return Context(opened);
}

/** One masked call by OpenCL. */
class OpenClCall {
public:
    OpenClCall(const Context &context, const Kernel &kernel, const GpuWorkbench &bench, const ByteMask &bytes)
        : context_(context), kernel_(kernel), bench_(bench), bytes_(bytes), queue_(context.get()),
          input_memory_(context.get(), bytes_of_tensor(bench.problem.stored_input(false))),
          output_memory_(context.get(), bench.spoiled_output()), mask_memory_(context.get(), bytes.bytes),
          weights_(pack_weights(context, kernel, bench.problem.weights())), mask_(make_mask(context)),
          input_(bench.problem.input(false)), output_(bench.problem.output(output_memory_.data())) {
        const auto offset = static_cast<const char *>(input_.data) - bench.problem.stored_input(false).memory();
        input_.data = input_memory_.data() + offset;
    }

    void set_mask() const {
        check(context_, distile_mask_set_bytes(mask_.get(), mask_memory_.data(), bytes_.batch, bytes_.height,
                                               bytes_.width, int64_t{bytes_.height} * bytes_.width, bytes_.width));
    }
    void run(const char *variant) const {
        distile_run_args args{};
        args.input = &input_;
        args.output = &output_;
        args.weights = weights_.get();
        args.mask = mask_.get();
        args.variant = variant;
        check(context_, distile_run(kernel_.get(), &args));
    }
    void finish() const {
        queue_.finish();
    }
    /** The error of what was written. Throws where it is too large. */
    double error() const {
        return bench_.check_output(output_memory_.get(), bytes_, false, true);
    }

private:
    const Context &context_;
    const Kernel &kernel_;
    const GpuWorkbench &bench_;
    const ByteMask &bytes_;
    OpenClQueue queue_;
    OpenClArray<uint8_t> input_memory_, output_memory_, mask_memory_;
    Weights weights_;
    Mask mask_;
    distile_tensor input_, output_;
};

/** What a program does with a queue: many calls, then it waits. OpenCL has no graphs, so the host's clock tells. */
struct Side {
    std::function<void()> call, finish;

    double time(int32_t calls) const {
        using Clock = std::chrono::steady_clock;
        finish();
        const Clock::time_point start = Clock::now();
        for (int32_t i = 0; i < calls; i++) {
            call();
        }
        finish();
        return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls;
    }
};

std::vector<Spread> time_in_turns(const std::vector<Side> &sides, int32_t rounds) {
    constexpr double enough_us = 2000;
    std::vector<int32_t> calls;
    for (const Side &side : sides) {
        // The first call loads what it needs.
        side.time(1);
        calls.push_back(static_cast<int32_t>(std::clamp(std::ceil(enough_us / side.time(1)), 1.0, 200.0)));
    }
    std::vector<std::vector<double>> times(sides.size());
    // The first round warms up and does not count.
    for (int32_t round = -1; round < rounds; round++) {
        for (size_t i = 0; i < sides.size(); i++) {
            const double time = sides[i].time(calls[i]);
            if (round >= 0) {
                times[i].push_back(time);
            }
        }
    }
    std::vector<Spread> spreads;
    for (std::vector<double> &series : times) {
        spreads.push_back(spread_of(std::move(series)));
    }
    return spreads;
}

}  // namespace

void CudaRunner::measure(const OpenClRow &row, Json &result) {
    result["kind"] = "opencl";
    result["op"] = row.op.name;
    result["batch"] = row.batch;
    result["mask"] = row.mask.name;
    const GpuWorkbench &bench = workbench(bench_, row.op, find_numerics("float32"), row.batch);
    const BenchOperator &op = bench.problem.op();
    result["category"] = op.category;
    result["shape"] = op.shape();
    const ByteMask bytes = draw(row.mask, row.batch, op.output_height(), op.output_width());
    result["density"] = rounded(bytes.density());

    const MaskedCall cuda(bench, bytes);
    result["cuda_max_rel_err"] = rounded(cuda.checked(nullptr));
    const char *const cuda_variant = traced_.variant;
    result["cuda_variant"] = cuda_variant;

    distile_choice traced{};
    const Context context = open_opencl(traced);
    const Kernel kernel = load_kernel(context, row.polykernel());
    const OpenClCall opencl(context, kernel, bench, bytes);
    opencl.set_mask();
    opencl.run(nullptr);
    result["max_rel_err"] = rounded(opencl.error());
    const char *const variant = traced.variant;
    result["variant"] = variant;

    const Mask known = make_mask(context_);
    cuda.set(known);
    const auto cuda_done = [&] { slice_.synchronise(); };
    const auto opencl_done = [&] { opencl.finish(); };
    const std::vector<Spread> spreads = time_in_turns({{[&] { opencl.run(variant); }, opencl_done},
                                                       {[&] { cuda.run(known, cuda_variant); }, cuda_done},
                                                       {[&] {
                                                            opencl.set_mask();
                                                            opencl.run(variant);
                                                        },
                                                        opencl_done},
                                                       {[&] { cuda.set_and_run(cuda_variant); }, cuda_done}},
                                                      options_.rounds);
    add_times(result, spreads[0]);
    add_comparison(result, "cuda", spreads[0], spreads[1]);
    add_ratio_goal(result, row.goal_ratio);
    result["t_masked_us"] = rounded(spreads[2].median);
    result["t_plain_masked_us"] = rounded(spreads[3].median);
    result["ratio_masked"] = rounded(spreads[2].median / spreads[3].median);
}

}  // namespace distile::bench
