// The row of the runner that compares OpenCL with CUDA on one GPU.
#include "autoscheduler/measure/opencl_array.h"
#include "bench/gpu/cuda_runner.h"
#include "bench/gpu/masked_call.h"
#include <algorithm>
#include <chrono>
#include <cmath>

namespace distile::bench {

namespace {

/** One masked call by OpenCL. */
class OpenClCall {
public:
    OpenClCall(const Context &context, const Kernel &kernel, const GpuWorkbench &bench, const ByteMask &bytes)
        : context_(context), kernel_(kernel), bench_(bench), bytes_(bytes), queue_(context.get()),
          input_memory_(context.get(), bench.problem.stored_input(false).all_bytes()),
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
class CallsInARow {
public:
    CallsInARow(std::function<void()> call, std::function<void()> finish)
        : call_(std::move(call)), finish_(std::move(finish)) {
        constexpr double enough_us = 2000;
        // The first call loads what it needs.
        time();
        calls_ = static_cast<int32_t>(std::clamp(std::ceil(enough_us / time()), 1.0, 200.0));
    }

    /** Microseconds of a call. */
    double time() const {
        using Clock = std::chrono::steady_clock;
        finish_();
        const Clock::time_point start = Clock::now();
        for (int32_t i = 0; i < calls_; i++) {
            call_();
        }
        finish_();
        return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls_;
    }

private:
    std::function<void()> call_, finish_;
    int32_t calls_ = 1;
};

}  // namespace

void CudaRunner::measure(const OpenClRow &row, Json &result) {
    result["kind"] = "opencl";
    const GpuWorkbench &bench = workbench(bench_, row.op, find_numerics("float32"), row.batch);
    const ByteMask bytes = draw_for(row, bench, result);

    const MaskedCall cuda(bench, bytes);
    result["cuda_max_rel_err"] = rounded(cuda.checked(nullptr));
    const char *const cuda_variant = traced_.variant;
    result["cuda_variant"] = cuda_variant;

    distile_choice traced{};
    const Context context = [&] {
        try {
            return make_opencl_context(&traced);
        } catch (const Error &error) {
            throw PeerMissing(error.what());
        }
    }();
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
    const CallsInARow ours([&] { opencl.run(variant); }, opencl_done),
        others([&] { cuda.run(known, cuda_variant); }, cuda_done),
        ours_masked(
            [&] {
                opencl.set_mask();
                opencl.run(variant);
            },
            opencl_done),
        others_masked([&] { cuda.set_and_run(cuda_variant); }, cuda_done);
    const std::vector<Spread> spreads = in_turns<CallsInARow>({&ours, &others, &ours_masked, &others_masked});
    add_times(result, spreads[0]);
    add_comparison(result, "cuda", spreads[0], spreads[1]);
    add_ratio_goal(result, row.goal_ratio);
    result["t_masked_us"] = rounded(spreads[2].median);
    result["t_plain_masked_us"] = rounded(spreads[3].median);
    result["ratio_masked"] = rounded(spreads[2].median / spreads[3].median);
}

}  // namespace distile::bench
