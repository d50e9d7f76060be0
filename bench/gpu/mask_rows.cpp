// The rows of the runner that measure masks alone.
#include "autoscheduler/measure/gpu.h"
#include "bench/gpu/cuda_runner.h"
#include "bench/harness/algebra.h"
#include "bench/harness/masks.h"
#include <random>

namespace distile::bench {

void CudaRunner::measure(const MaskRow &row, Json &result) {
    result["kind"] = "mask";
    result["mask"] = row.mask.name;
    result["density"] = row.mask.density;
    const ByteMask bytes = draw(row.mask, 1, row.height, row.width);
    const DeviceArray<uint8_t> device_bytes(bytes.bytes);
    const Mask mask = make_mask(context_);
    const GpuGraph graph(slice_, [&] {
        distile_tile_list list{};
        check(context_, distile_mask_set_bytes(mask.get(), device_bytes.data(), 1, row.height, row.width,
                                               int64_t{row.height} * row.width, row.width));
        check(context_, distile_mask_tiles(mask.get(), 1, 1, &list));
    });
    const Spread spread = in_turns({&graph}).front();
    add_times(result, spread);
    add_goal(result, row.goal_us);
}

void CudaRunner::measure(const AlgebraRow &row, Json &result) {
    result["kind"] = "algebra";
    result["function"] = row.function;
    result["mask"] = row.mask.name;
    result["density"] = row.mask.density;
    const auto function = find_algebra(row.function, row.height, row.width);
    const Mask made = make_mask(context_);
    std::vector<Mask> masks;
    for (int32_t i = 0; i < 2; i++) {
        MaskSpec spec = row.mask;
        spec.seed += i;
        const ByteMask bytes = draw(spec, 1, function.height, function.width);
        const DeviceArray<uint8_t> device_bytes(bytes.bytes);
        masks.push_back(make_mask(context_));
        check(context_,
              distile_mask_set_bytes(masks.back().get(), device_bytes.data(), 1, function.height, function.width,
                                     int64_t{function.height} * function.width, function.width));
        slice_.synchronise();
    }
    const GpuGraph graph(slice_, [&] { check(context_, function.call(made.get(), masks[0].get(), masks[1].get())); });
    const Spread spread = in_turns({&graph}).front();
    add_times(result, spread);
    add_goal(result, row.goal_us);
}

void CudaRunner::measure(const DifferenceRow &row, Json &result) {
    result["kind"] = "difference";
    const size_t count = static_cast<size_t>(row.height) * row.width * row.channels;
    std::vector<float> values(count);
    std::mt19937 random(1);
    for (float &value : values) {
        value = static_cast<float>(random() % 256) / 256;
    }
    const DeviceArray<float> a(values);
    // An edit of a rectangle, and noise below the threshold.
    for (size_t i = 0; i < count; i++) {
        values[i] += i > count / 3 && i < count / 2 ? 0.5f : 0.01f;
    }
    const DeviceArray<float> b(values);
    const DeviceArray<float> copy(count);
    const distile_tensor from = distile_tensor_make(a.data(), 1, row.height, row.width, row.channels);
    distile_tensor to = from;
    to.data = b.data();
    const Mask mask = make_mask(context_);
    const GpuGraph difference(slice_,
                              [&] { check(context_, distile_mask_set_difference(mask.get(), &from, &to, 0.05f)); });
    // A copy reads and writes as many bytes as the difference reads.
    const GpuGraph copying(slice_, [&] {
        CU(cuMemcpyDtoDAsync, reinterpret_cast<CUdeviceptr>(copy.data()), reinterpret_cast<CUdeviceptr>(a.data()),
           count * sizeof(float), static_cast<CUstream>(slice_.stream()));
    });
    const std::vector<Spread> spreads = in_turns({&difference, &copying});
    const double bytes = 2.0 * static_cast<double>(count * sizeof(float));
    add_times(result, spreads[0]);
    result["t_copy_us"] = rounded(spreads[1].median);
    result["gb_per_s"] = rounded(bytes / spreads[0].median / 1e3);
    result["copy_gb_per_s"] = rounded(bytes / spreads[1].median / 1e3);
    result["of"] = "a copy";
    result["ratio"] = rounded(spreads[0].median / spreads[1].median);
    result["goal_ratio"] = row.goal_ratio;
    result["met"] = spreads[0].median < row.goal_ratio * spreads[1].median;
}

}  // namespace distile::bench
