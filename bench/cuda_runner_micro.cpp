// The rows of the runner that measure masks alone.
#include "cuda_runner.h"
#include "gpu.h"
#include "masks.h"
#include <distile/cuda_mask_algebra.h>
#include <functional>
#include <random>
#include <stdexcept>

namespace distile::bench {

namespace {

using AlgebraFunction =
    std::function<distile_status(distile_cuda_mask *result, distile_cuda_mask *a, distile_cuda_mask *b)>;

/** The function of a row by its name there. Throws std::runtime_error if there is none. */
AlgebraFunction find_algebra(const AlgebraRow &row) {
    const int32_t height = row.height, width = row.width;
    const auto window = [](int32_t stride) {
        return distile_window{3, 3, stride, stride, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
    };
    const auto needed = [=](int32_t stride) {
        return [=](distile_cuda_mask *result, distile_cuda_mask *a, distile_cuda_mask *) {
            const distile_window read = window(stride);
            return distile_cuda_mask_needed_input(result, a, &read, height * stride, width * stride);
        };
    };
    const auto affected = [=](int32_t stride) {
        return [=](distile_cuda_mask *result, distile_cuda_mask *a, distile_cuda_mask *) {
            const distile_window read = window(stride);
            return distile_cuda_mask_affected_output(result, a, &read, (height - 1) / stride + 1,
                                                     (width - 1) / stride + 1);
        };
    };
    const auto upsample = [=](int32_t scale) {
        return [=](distile_cuda_mask *result, distile_cuda_mask *a, distile_cuda_mask *) {
            const distile_window repeat{1, 1, scale, scale, 1, 1, 0, 0, DISTILE_WINDOW_UPSAMPLED};
            return distile_cuda_mask_affected_output(result, a, &repeat, height * scale, width * scale);
        };
    };
    const auto dilate = [](int32_t radius) {
        return [=](distile_cuda_mask *result, distile_cuda_mask *a, distile_cuda_mask *) {
            return distile_cuda_mask_dilate(result, a, radius, radius);
        };
    };
    const auto pool = [](int32_t factor) {
        return [=](distile_cuda_mask *result, distile_cuda_mask *a, distile_cuda_mask *) {
            return distile_cuda_mask_pool(result, a, factor, factor);
        };
    };
    const std::map<std::string, AlgebraFunction> functions = {
        {"needed_input_3x3", needed(1)},
        {"needed_input_3x3_stride2", needed(2)},
        {"affected_output_3x3", affected(1)},
        {"affected_output_3x3_stride2", affected(2)},
        {"upsample_2", upsample(2)},
        {"dilate_1", dilate(1)},
        {"dilate_8", dilate(8)},
        {"pool_2", pool(2)},
        {"pool_8", pool(8)},
        {"unite", distile_cuda_mask_unite},
        {"intersect", distile_cuda_mask_intersect},
        {"subtract", distile_cuda_mask_subtract},
        {"invert", [](distile_cuda_mask *result, distile_cuda_mask *a,
                      distile_cuda_mask *) { return distile_cuda_mask_invert(result, a); }},
    };
    const auto found = functions.find(row.function);
    if (found == functions.end()) {
        throw std::runtime_error("this program knows no function of masks '" + row.function + "'");
    }
    return found->second;
}

void add_times(Json &result, const Spread &spread) {
    result["t_us"] = rounded(spread.median);
    result["us"] = to_json(spread);
}

}  // namespace

void CudaRunner::measure(const MaskRow &row, Json &result) {
    result["kind"] = "mask";
    result["mask"] = row.mask.name;
    result["density"] = row.mask.density;
    const ByteMask bytes = make_byte_mask(row.mask, 1, row.height, row.width, options_.data + "/masks");
    const DeviceArray<uint8_t> device_bytes(bytes.bytes);
    const CudaMask mask = make_mask(context_, cuda_);
    const GpuGraph graph(slice_, [&] {
        const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
        check(context_, distile_cuda_mask_set_bytes(mask.get(), device_bytes.data(), 1, row.height, row.width,
                                                    int64_t{row.height} * row.width, row.width));
        check(context_, distile_cuda_mask_tiles(mask.get(), 1, 1, &xy, &images, &count));
    });
    const Spread spread = in_turns({&graph}, result).front();
    add_times(result, spread);
    result["goal_us"] = row.goal_us;
    result["met"] = spread.median < row.goal_us;
}

void CudaRunner::measure(const AlgebraRow &row, Json &result) {
    result["kind"] = "algebra";
    result["function"] = row.function;
    result["mask"] = row.mask.name;
    result["density"] = row.mask.density;
    const AlgebraFunction function = find_algebra(row);
    const CudaMask made = make_mask(context_, cuda_);
    std::vector<CudaMask> masks;
    for (int32_t i = 0; i < 2; i++) {
        MaskSpec spec = row.mask;
        spec.seed += i;
        const ByteMask bytes = make_byte_mask(spec, 1, row.height, row.width, options_.data + "/masks");
        const DeviceArray<uint8_t> device_bytes(bytes.bytes);
        masks.push_back(make_mask(context_, cuda_));
        check(context_, distile_cuda_mask_set_bytes(masks.back().get(), device_bytes.data(), 1, row.height, row.width,
                                                    int64_t{row.height} * row.width, row.width));
        slice_.synchronise();
    }
    const GpuGraph graph(slice_, [&] { check(context_, function(made.get(), masks[0].get(), masks[1].get())); });
    const Spread spread = in_turns({&graph}, result).front();
    add_times(result, spread);
    result["goal_us"] = row.goal_us;
    result["met"] = spread.median < row.goal_us;
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
    const CudaMask mask = make_mask(context_, cuda_);
    const GpuGraph difference(
        slice_, [&] { check(context_, distile_cuda_mask_set_difference(mask.get(), &from, &to, 0.05f)); });
    // A copy reads and writes as many bytes as the difference reads.
    const GpuGraph copying(slice_, [&] {
        CU(cuMemcpyDtoDAsync, reinterpret_cast<CUdeviceptr>(copy.data()), reinterpret_cast<CUdeviceptr>(a.data()),
           count * sizeof(float), static_cast<CUstream>(slice_.stream()));
    });
    const std::vector<Spread> spreads = in_turns({&difference, &copying}, result);
    const double bytes = 2.0 * static_cast<double>(count * sizeof(float));
    add_times(result, spreads[0]);
    result["t_copy_us"] = rounded(spreads[1].median);
    result["gb_per_s"] = rounded(bytes / spreads[0].median / 1e3);
    result["copy_gb_per_s"] = rounded(bytes / spreads[1].median / 1e3);
    result["ratio"] = rounded(spreads[0].median / spreads[1].median);
    result["goal_ratio"] = row.goal_ratio;
    result["met"] = spreads[0].median < row.goal_ratio * spreads[1].median;
}

}  // namespace distile::bench
