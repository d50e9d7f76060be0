#include "bench/gpu/workbench.h"
#include "bench/gpu/dense_peer.h"
#include "bench/gpu/gathered_peer.h"
#include "bench/harness/peer_missing.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/core.h>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

namespace distile::bench {

namespace {

constexpr float spoiled = -12345.0f;
/** The most pixels of each row whose results are compared with plain loops, the fewest, and the products that limit
 * them for large operators. */
constexpr size_t sampled_pixels = 192, fewest_sampled_pixels = 4, sampled_products = size_t{1} << 27;

/** The weights of a Problem in cuDNN's order: the convolution's result channel, row, column, and image channel. The
 * convolution of a transposed operator goes from our output to our input. */
std::vector<float> filter_of_cudnn(const BenchOperator &op, const float *hwio) {
    const size_t taps = static_cast<size_t>(op.conv.kernel_h) * op.conv.kernel_w;
    const size_t inputs = op.conv.in_channels / op.conv.groups, outputs = op.conv.out_channels;
    const bool transposed = op.kind == DISTILE_MASKED_CONV_TRANSPOSE2D;
    std::vector<float> filter(taps * inputs * outputs);
    for (size_t tap = 0; tap < taps; tap++) {
        for (size_t i = 0; i < inputs; i++) {
            for (size_t o = 0; o < outputs; o++) {
                const size_t to = transposed ? (i * taps + tap) * outputs + o : (o * taps + tap) * inputs + i;
                filter[to] = hwio[(tap * inputs + i) * outputs + o];
            }
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

GpuWorkbench::GpuWorkbench(const Context &context, const GpuSlice &slice, const Libraries &libraries,
                           const BenchOperator &op, const Numerics &numerics, int32_t batch, const Kernel &kernel)
    : context(context), problem(op, batch), kernel(kernel), weights(pack_weights(context, kernel, problem.weights())),
      mask(make_mask(context)), numerics_(numerics), slice_(slice), libraries_(libraries),
      plain_(problem.stored_input(false).all_bytes()), bordered_(problem.stored_input(true).all_bytes()),
      output_(bytes_of(op.dtype, problem.output_size())),
      filter_(from_floats(op.dtype, filter_of_cudnn(op, static_cast<const float *>(problem.weights().filter)))),
      bias_(from_floats(op.dtype, {problem.weights().bias, problem.weights().bias + op.conv.out_channels})) {
    if (problem.stored_residual()) {
        residual_.emplace(problem.stored_residual()->all_bytes());
    }
}

const GpuWorkbench::Peer &GpuWorkbench::peer(const std::string &name) {
    if (failures_.count(name) != 0) {
        std::rethrow_exception(failures_.at(name));
    }
    auto known = peers_.find(name);
    if (known == peers_.end()) {
        try {
            known = peers_.emplace(name, make_peer(name)).first;
        } catch (...) {
            failures_[name] = std::current_exception();
            throw;
        }
    }
    return known->second;
}

GpuWorkbench::Peer GpuWorkbench::make_peer(const std::string &name) const {
    const BenchOperator &op = problem.op();
    const Numerics &numerics = name == "cudnn-tf32" ? find_numerics("tf32") : numerics_;
    const double allowed = numerics.peer_tolerance();
    Difference difference{};
    const auto is_right = [&](const std::function<void()> &run, bool has_epilogue) {
        spoil();
        run();
        difference = check_peer(has_epilogue);
        return difference.error <= allowed;
    };
    std::unique_ptr<GpuPeer> dense;
    if (name == "dense" || name == "cublas") {
        dense = name == "dense"
                    ? make_dense_gpu_peer(*this, slice_)
                    : cublas().linear(linear_shape(), plain_.data(), filter_.data(), bias_.data(), output_.data());
        if (!is_right([&] { dense->run(); }, true)) {
            throw std::runtime_error(fmt::format("the peer's output ({}) differs from plain loops by {} of the largest "
                                                 "value {}; {} is allowed",
                                                 dense->implementation(), difference.error, difference.where, allowed));
        }
    } else if (!libraries_.cudnn) {
        throw PeerMissing("there is no cuDNN; the header of the results says why");
    } else {
        // cuDNN's convolutions compute neither bias nor epilogue.
        dense = libraries_.cudnn->convolution(op.kind, op.conv, input(false), filter_.data(), output_tensor(),
                                              numerics.math,
                                              [&](const std::function<void()> &run) { return is_right(run, false); });
    }
    return as_graph(std::move(dense), difference.error);
}

GpuWorkbench::Peer GpuWorkbench::gathered_peer(const ByteMask &mask) const {
    const LinearArrays arrays = {plain_.data(), filter_.data(), bias_.data(), output_.data()};
    std::unique_ptr<GpuPeer> gathered = make_gathered_peer(slice_, cublas(), linear_shape(), arrays, mask);
    spoil();
    gathered->run();
    const double error = check_output(mask, false);
    return as_graph(std::move(gathered), error);
}

GpuWorkbench::Peer GpuWorkbench::as_graph(std::unique_ptr<GpuPeer> peer, double error) const {
    const GpuPeer &known = *peer;
    auto graph = std::make_unique<GpuGraph>(slice_, [&known] { known.run(); });
    return {std::move(peer), error, std::move(graph)};
}

const Cublas &GpuWorkbench::cublas() const {
    const BenchOperator &op = problem.op();
    if (!libraries_.cublas) {
        throw PeerMissing("there is no cuBLAS; the header of the results says why");
    }
    if (op.polykernel->kind != DISTILE_MASKED_LINEAR || op.conv.epilogue != DISTILE_ACTIVATION_NONE ||
        op.conv.residual != 0) {
        throw PeerMissing("cuBLAS is the peer of linear layers without residual and epilogue only");
    }
    return *libraries_.cublas;
}

LinearShape GpuWorkbench::linear_shape() const {
    const BenchOperator &op = problem.op();
    return {int64_t{problem.batch()} * op.height * op.width, op.conv.in_channels, op.conv.out_channels, op.dtype,
            numerics_.math};
}

distile_tensor GpuWorkbench::input(bool with_border) const {
    distile_tensor tensor = problem.input(with_border);
    const auto offset = static_cast<const char *>(tensor.data) - problem.stored_input(with_border).memory();
    tensor.data = (with_border ? bordered_ : plain_).data() + offset;
    return tensor;
}

std::optional<distile_tensor> GpuWorkbench::residual() const {
    if (!residual_) {
        return std::nullopt;
    }
    const TypedTensor &stored = *problem.stored_residual();
    distile_tensor tensor = stored.view();
    tensor.data = residual_->data() + (static_cast<const char *>(tensor.data) - stored.memory());
    return tensor;
}

distile_tensor GpuWorkbench::output_tensor() const {
    return problem.output(output_.data());
}

void GpuWorkbench::spoil() const {
    const distile_dtype dtype = problem.op().dtype;
    const size_t words = bytes_of(dtype, problem.output_size()) / sizeof(uint32_t);
    CU(cuMemsetD32, reinterpret_cast<CUdeviceptr>(output_.data()), word_of(dtype, spoiled), words);
    CU(cuCtxSynchronize);
}

GpuWorkbench::Difference GpuWorkbench::difference_of(const std::vector<uint8_t> &result, std::vector<size_t> pixels,
                                                     bool has_epilogue) const {
    const BenchOperator &op = problem.op();
    const auto width = static_cast<size_t>(op.output_width());
    const size_t size = width * static_cast<size_t>(op.output_height());
    const auto channels = static_cast<size_t>(op.conv.out_channels);
    const float *const bias = problem.weights().bias;
    std::vector<double> sums;
    double worst = 0, largest = std::numeric_limits<double>::min();
    std::string where;
    const size_t products = filter_size(op.conv);
    const size_t wanted_pixels = std::clamp(sampled_products / products, fewest_sampled_pixels, sampled_pixels);
    for (const size_t pixel : sample(std::move(pixels), wanted_pixels)) {
        const std::vector<float> values =
            to_floats(op.dtype, result.data() + pixel * bytes_of(op.dtype, channels), channels);
        problem.sum_pixel(static_cast<int32_t>(pixel / size), static_cast<int32_t>(pixel % size / width),
                          static_cast<int32_t>(pixel % width), sums, has_epilogue);
        for (size_t c = 0; c < channels; c++) {
            const double wanted = has_epilogue ? apply_epilogue(op.conv.epilogue, sums[c]) : sums[c] - bias[c];
            const double difference = std::abs(values[c] - wanted);
            largest = std::max(largest, std::abs(wanted));
            if (!(difference <= worst)) {
                worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
                where = fmt::format("at pixel {}, channel {}: {} instead of {}", pixel, c, values[c], wanted);
            }
        }
    }
    return {worst / largest, where};
}

GpuWorkbench::Difference GpuWorkbench::check_peer(bool has_epilogue) const {
    std::vector<size_t> pixels(problem.output_size() / problem.op().conv.out_channels);
    std::iota(pixels.begin(), pixels.end(), size_t{0});
    return difference_of(output_.get(), std::move(pixels), has_epilogue);
}

std::vector<uint8_t> GpuWorkbench::spoiled_output() const {
    const distile_dtype dtype = problem.op().dtype;
    const uint32_t word = word_of(dtype, spoiled);
    std::vector<uint8_t> bytes(bytes_of(dtype, problem.output_size()));
    for (size_t at = 0; at + sizeof(word) <= bytes.size(); at += sizeof(word)) {
        std::memcpy(bytes.data() + at, &word, sizeof(word));
    }
    return bytes;
}

double GpuWorkbench::check_output(const ByteMask &bytes, bool zero, bool has_epilogue) const {
    return check_output(output_.get(), bytes, zero, has_epilogue);
}

double GpuWorkbench::check_output(const std::vector<uint8_t> &result, const ByteMask &bytes, bool zero,
                                  bool has_epilogue) const {
    const BenchOperator &op = problem.op();
    const size_t pixel_bytes = bytes_of(op.dtype, op.conv.out_channels);
    // The expected value of an inactive pixel.
    const uint32_t word = zero ? 0 : word_of(op.dtype, spoiled);
    std::vector<uint8_t> due(pixel_bytes);
    for (size_t at = 0; at + sizeof(word) <= pixel_bytes; at += sizeof(word)) {
        std::memcpy(due.data() + at, &word, sizeof(word));
    }
    std::vector<size_t> active;
    for (size_t pixel = 0; pixel < bytes.bytes.size(); pixel++) {
        if (bytes.bytes[pixel] != 0) {
            active.push_back(pixel);
        } else if (std::memcmp(result.data() + pixel * pixel_bytes, due.data(), pixel_bytes) != 0) {
            throw std::runtime_error(fmt::format("the inactive pixel {} {}", pixel,
                                                 zero ? "is not zero in mode 'zero'" : "was changed in mode 'keep'"));
        }
    }
    const auto [error, where] = difference_of(result, std::move(active), has_epilogue);
    const double allowed = has_epilogue ? numerics_.tolerance() : numerics_.peer_tolerance();
    if (!(error <= allowed)) {
        throw std::runtime_error(fmt::format("our active pixels differ from plain loops by {} of the largest "
                                             "value {}; {} is allowed",
                                             error, where, allowed));
    }
    return error;
}

void GpuWorkbench::set_mask(const Mask &to, const ByteMask &bytes, const DeviceArray<uint8_t> &device_bytes,
                            const Context *owner) const {
    check(owner ? *owner : context,
          distile_mask_set_bytes(to.get(), device_bytes.data(), bytes.batch, bytes.height, bytes.width,
                                 int64_t{bytes.height} * bytes.width, bytes.width));
}

}  // namespace distile::bench
