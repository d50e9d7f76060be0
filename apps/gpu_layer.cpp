#include "gpu_layer.h"
#include "autoscheduler/measure/gpu.h"
#include "autoscheduler/measure/gpu_measure.h"
#include <algorithm>
#include <distile_conv3x3_128_cuda.h>
#include <distile_conv3x3_256_cuda.h>
#include <stdexcept>

namespace distile {

namespace {

const distile_polykernel &find_polykernel(const distile_conv2d &conv) {
    for (const distile_polykernel *polykernel : {&distile_conv3x3_256_cuda, &distile_conv3x3_128_cuda}) {
        const auto &built = *static_cast<const distile_conv2d *>(polykernel->op);
        if (built.in_channels == conv.in_channels && built.out_channels == conv.out_channels) {
            return *polykernel;
        }
    }
    throw std::runtime_error("no PolyKernel for GPUs computes this layer");
}

/** 0 without a GPU: the library's own error then says more than the driver's. */
int all_multiprocessors() {
    make_cuda_context();
    return 0;
}

/** The pixels of a one-image tensor, without its border. */
std::vector<float> pixels_of(const distile_tensor &tensor) {
    std::vector<float> pixels;
    const auto row = int64_t{tensor.width} * tensor.channels;
    for (int32_t y = 0; y < tensor.height; y++) {
        const float *begin = static_cast<const float *>(tensor.data) + y * tensor.stride_h;
        pixels.insert(pixels.end(), begin, begin + row);
    }
    return pixels;
}

}  // namespace

struct GpuLayer::State {
    explicit State(const Layer &of)
        : layer(of), slice(all_multiprocessors()), context(make_context(slice, &choice)),
          kernel(make_kernel(context, find_polykernel(of.conv2d()))), mask(make_mask(context)),
          input_memory(pixels_of(of.input)), output_memory(static_cast<size_t>(of.pixels()) * of.output.channels) {
        distile_weights_source source{};
        source.filter = layer.filter.data();
        source.order = DISTILE_OIHW;
        source.bias = layer.bias.data();
        weights = pack_weights(context, kernel, source);
        input = distile_tensor_make(input_memory.data(), 1, layer.height, layer.width, layer.input.channels);
        output = distile_tensor_make(output_memory.data(), 1, layer.height, layer.width, layer.output.channels);
    }

    void run(const char *variant) {
        distile_run_args args{};
        args.input = &input;
        args.output = &output;
        args.weights = weights.get();
        args.mask = mask.get();
        args.variant = variant;
        check(context, distile_run(kernel.get(), &args));
    }
    void set(const DeviceArray<uint8_t> &bytes) {
        check(context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, layer.height, layer.width, layer.pixels(),
                                              layer.width));
    }

    const Layer &layer;
    distile_choice choice{};
    GpuSlice slice;
    Context context;
    Kernel kernel;
    Mask mask;
    Weights weights;
    DeviceArray<float> input_memory, output_memory;
    distile_tensor input{}, output{};
};

GpuLayer::GpuLayer(const Layer &layer) : state_(std::make_unique<State>(layer)) {
}

GpuLayer::~GpuLayer() = default;

std::string GpuLayer::device() const {
    return state_->slice.device() + ", " + std::to_string(state_->slice.multiprocessors()) + " multiprocessors";
}

GpuTimes GpuLayer::measure(const ByteMask &bytes) {
    State &state = *state_;
    const DeviceArray<uint8_t> device_bytes(bytes.bytes);
    state.set(device_bytes);
    state.run(nullptr);
    const distile_choice choice = state.choice;
    state.slice.synchronise();
    GpuTimes times;
    times.variant = choice.variant;
    times.error = state.layer.error_of(state.output_memory.get().data(), &bytes);

    const GpuGraph masked(state.slice, [&] {
        state.set(device_bytes);
        state.run(choice.variant);
    });
    const GpuGraph dense(state.slice, [&] { state.run("dense"); });
    std::vector<double> masked_us, dense_us;
    constexpr size_t rounds = 21;
    for (size_t round = 0; round < rounds; round++) {
        masked_us.push_back(masked.time());
        dense_us.push_back(dense.time());
    }
    const auto median = [](std::vector<double> &values) {
        std::nth_element(values.begin(), values.begin() + rounds / 2, values.end());
        return values[rounds / 2];
    };
    times.masked = median(masked_us);
    times.dense = median(dense_us);
    return times;
}

}  // namespace distile
