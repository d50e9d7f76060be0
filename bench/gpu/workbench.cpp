#include "workbench.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/core.h>
#include <limits>
#include <random>
#include <stdexcept>

namespace distile::bench {

namespace {

constexpr float spoiled = -12345.0f;
constexpr double tolerance = 1e-4;
/** TF32 keeps 10 bits of a factor's mantissa. */
constexpr double tf32_tolerance = 5e-3;
/** Pixels whose result is compared with plain loops, for each row. */
constexpr size_t sampled_pixels = 192;

std::vector<float> to_host_order(const AlignedFloats &memory) {
    return {memory.data(), memory.data() + memory.size()};
}

/** Weights as cuDNN takes them, from those of a Problem. */
std::vector<float> filter_by_output_channel(const distile_conv2d &conv, const float *hwio) {
    const size_t taps = static_cast<size_t>(conv.kernel_h) * conv.kernel_w * conv.in_channels;
    const auto outputs = static_cast<size_t>(conv.out_channels);
    std::vector<float> filter(taps * outputs);
    for (size_t tap = 0; tap < taps; tap++) {
        for (size_t o = 0; o < outputs; o++) {
            filter[o * taps + tap] = hwio[tap * outputs + o];
        }
    }
    return filter;
}

/** Some different elements of a list, in any order. */
std::vector<size_t> sample(std::vector<size_t> from, size_t count) {
    std::mt19937 random(1);
    std::shuffle(from.begin(), from.end(), random);
    from.resize(std::min(from.size(), count));
    return from;
}

}  // namespace

GpuWorkbench::GpuWorkbench(const Context &context, const GpuSlice &slice, const Cudnn *cudnn, const Operator &op,
                           int32_t batch, const Kernel &kernel)
    : context(context), problem(op, batch), kernel(kernel), weights(pack_weights(context, kernel, problem.weights())),
      mask(make_mask(context)), plain_(to_host_order(problem.input_memory(false))),
      bordered_(to_host_order(problem.input_memory(true))), output_(problem.output_size()),
      filter_(filter_by_output_channel(op.conv, static_cast<const float *>(problem.weights().filter))) {
    if (cudnn) {
        peer = make_peer(slice, *cudnn, false);
        peer_tf32 = make_peer(slice, *cudnn, true);
    }
}

GpuWorkbench::Peer GpuWorkbench::make_peer(const GpuSlice &slice, const Cudnn &cudnn, bool tf32) const {
    Peer made;
    made.convolution = cudnn.convolution(problem.op().conv, input(false), filter_.data(), output_tensor(), tf32);
    const GpuPeer &convolution = *made.convolution;
    spoil();
    convolution.run();
    made.error = check_peer();
    const double allowed = tf32 ? tf32_tolerance : tolerance;
    if (!(made.error <= allowed)) {
        throw std::runtime_error(fmt::format("the peer's output ({}) differs from plain loops by {} of the largest "
                                             "value; {} is allowed",
                                             convolution.implementation(), made.error, allowed));
    }
    made.graph = std::make_unique<GpuGraph>(slice, [&convolution] { convolution.run(); });
    return made;
}

distile_tensor GpuWorkbench::input(bool with_border) const {
    distile_tensor tensor = problem.input(with_border);
    const auto offset = static_cast<const float *>(tensor.data) - problem.input_memory(with_border).data();
    tensor.data = (with_border ? bordered_ : plain_).data() + offset;
    return tensor;
}

distile_tensor GpuWorkbench::output_tensor() const {
    const Operator &op = problem.op();
    return distile_tensor_make(output_.data(), problem.batch(), op.output_height(), op.output_width(),
                               op.conv.out_channels);
}

void GpuWorkbench::spoil() const {
    unsigned int bits = 0;
    std::memcpy(&bits, &spoiled, sizeof(bits));
    CU(cuMemsetD32, reinterpret_cast<CUdeviceptr>(output_.data()), bits, problem.output_size());
    CU(cuCtxSynchronize);
}

/** The largest difference of some pixels to plain loops, by the largest value. `due` gives what an element must be
 * by the sum of its products and the bias. */
template<typename Due> double GpuWorkbench::error_of(const std::vector<float> &result,
                                                     const std::vector<size_t> &pixels, const Due &due) const {
    const Operator &op = problem.op();
    const auto width = static_cast<size_t>(op.output_width());
    const size_t size = width * static_cast<size_t>(op.output_height());
    const auto channels = static_cast<size_t>(op.conv.out_channels);
    std::vector<double> sums;
    double worst = 0, largest = std::numeric_limits<double>::min();
    for (const size_t pixel : pixels) {
        problem.sum_pixel(static_cast<int32_t>(pixel / size), static_cast<int32_t>(pixel % size / width),
                          static_cast<int32_t>(pixel % width), sums);
        for (size_t c = 0; c < channels; c++) {
            const double wanted = due(sums[c], c), difference = std::abs(result[pixel * channels + c] - wanted);
            largest = std::max(largest, std::abs(wanted));
            worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(worst, difference);
        }
    }
    return worst / largest;
}

double GpuWorkbench::check_peer() const {
    const std::vector<float> result = output_.get();
    std::vector<size_t> pixels(result.size() / problem.op().conv.out_channels);
    for (size_t i = 0; i < pixels.size(); i++) {
        pixels[i] = i;
    }
    const float *const bias = problem.weights().bias;
    return error_of(result, sample(pixels, sampled_pixels), [&](double sum, size_t c) { return sum - bias[c]; });
}

double GpuWorkbench::check_output(const ByteMask &bytes, bool zero) const {
    const std::vector<float> result = output_.get();
    const auto channels = static_cast<size_t>(problem.op().conv.out_channels);
    const float due = zero ? 0.0f : spoiled;
    std::vector<size_t> active;
    for (size_t pixel = 0; pixel < bytes.bytes.size(); pixel++) {
        if (bytes.bytes[pixel] != 0) {
            active.push_back(pixel);
            continue;
        }
        for (size_t i = pixel * channels; i < (pixel + 1) * channels; i++) {
            if (result[i] != due) {
                throw std::runtime_error(fmt::format("the inactive pixel {} holds {}; in mode '{}' {} is due", pixel,
                                                     result[i], zero ? "zero" : "keep", due));
            }
        }
    }
    const distile_epilogue epilogue = problem.op().conv.epilogue;
    const double error = error_of(result, sample(std::move(active), sampled_pixels),
                                  [&](double sum, size_t) { return apply_epilogue(epilogue, sum); });
    if (!(error <= tolerance)) {
        throw std::runtime_error(fmt::format("our active pixels differ from plain loops by {} of the largest "
                                             "value; {} is allowed",
                                             error, tolerance));
    }
    return error;
}

void GpuWorkbench::set_mask(const Mask &to, const ByteMask &bytes, const DeviceArray<uint8_t> &device_bytes) const {
    check(context, distile_mask_set_bytes(to.get(), device_bytes.data(), bytes.batch, bytes.height, bytes.width,
                                          int64_t{bytes.height} * bytes.width, bytes.width));
}

}  // namespace distile::bench
