// The row of the runner that compares an operator with little arithmetic with a copy of as many bytes.
#include "bench/gpu/cuda_runner.h"
#include "bench/gpu/masked_call.h"
#include <distile/mask_algebra.h>

namespace distile::bench {

namespace {

/** Two arrays on the GPU, and a copy from one to the other. */
class Copy {
public:
    Copy(const GpuSlice &slice, size_t bytes)
        : from_(bytes), to_(bytes), graph_(slice, [&, bytes] {
              CU(cuMemcpyDtoDAsync, reinterpret_cast<CUdeviceptr>(to_.data()),
                 reinterpret_cast<CUdeviceptr>(from_.data()), bytes, static_cast<CUstream>(slice.stream()));
          }) {
    }
    const GpuGraph &graph() const {
        return graph_;
    }

private:
    DeviceArray<uint8_t> from_, to_;
    GpuGraph graph_;
};

/** The bytes of the active output pixels and of the input pixels that they read; each pixel counts once. */
size_t active_bytes(const GpuWorkbench &bench, const MaskedCall &call, const ByteMask &bytes) {
    const BenchOperator &op = bench.problem.op();
    const distile_window window = distile_kernel_window(bench.kernel.get());
    const Mask needed = make_mask(bench.context);
    int64_t pixels = 0;
    call.set(bench.mask);
    check(bench.context, distile_mask_needed_input(needed.get(), bench.mask.get(), &window, op.height, op.width));
    check(bench.context, distile_mask_count_tiles(needed.get(), 1, 1, &pixels));
    const int64_t elements = pixels * op.conv.in_channels + bytes.active_pixels() * op.conv.out_channels;
    return bytes_of(op.dtype, static_cast<size_t>(elements));
}

}  // namespace

void CudaRunner::measure(const BandwidthRow &row, Json &result) {
    result["kind"] = "bandwidth";
    const GpuWorkbench &bench = workbench(bench_, row.op, find_numerics("float32"), row.batch);
    const ByteMask bytes = draw_for(row, bench, result);
    const MaskedCall call(bench, bytes);
    call.checked(nullptr);
    const char *const variant = traced_.variant;
    result["variant"] = variant;
    result["max_rel_err"] = rounded(call.checked(variant));

    // A copy reads and writes its bytes. A copy of as many bytes finds them where our operator does, in the
    // second-level cache or not; a large copy measures the memory.
    constexpr size_t large = size_t{1} << 29;
    const size_t moved = active_bytes(bench, call, bytes);
    const Mask known = make_mask(context_);
    call.set(known);
    const GpuGraph kernels(slice_, [&] { call.run(known, variant); });
    const GpuGraph whole(slice_, [&] { call.set_and_run(variant); });
    const Copy copy(slice_, moved / 2), large_copy(slice_, large);
    const std::vector<Spread> spreads = in_turns({&kernels, &whole, &copy.graph(), &large_copy.graph()});
    const auto gb_per_s = [](size_t count, const Spread &spread) {
        return static_cast<double>(count) / spread.median / 1e3;
    };
    const double ours = gb_per_s(moved, spreads[0]), copied = gb_per_s(moved, spreads[2]),
                 copied_large = gb_per_s(2 * large, spreads[3]);
    add_times(result, spreads[0]);
    result["t_masked_us"] = rounded(spreads[1].median);
    result["t_copy_us"] = rounded(spreads[2].median);
    result["bytes"] = moved;
    result["gb_per_s"] = rounded(ours);
    result["copy_gb_per_s"] = rounded(copied);
    result["large_copy_gb_per_s"] = rounded(copied_large);
    result["share"] = rounded(ours / copied);
    result["share_of_large_copy"] = rounded(ours / copied_large);
    result["share_masked"] = rounded(gb_per_s(moved, spreads[1]) / copied);
    if (row.goal_share > 0) {
        result["goal_share"] = row.goal_share;
        result["met"] = result.at("share") >= row.goal_share;
    }
}

}  // namespace distile::bench
