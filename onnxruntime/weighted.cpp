#include "onnxruntime/weighted.h"
#include "bindings/weight_pattern.h"
#include <algorithm>
#include <atomic>
#include <cstring>
#include <distile/layers.h>

namespace distile::ort {

namespace {

/** Only the first of all kernels that runs dense says so. */
void warn_once(const NodeView &node, const std::string &words) {
    static std::atomic<bool> warned{false};
    if (!warned.exchange(true)) {
        node.warn("distile: no PolyKernel computes " + words + " of node '" + node.name() +
                  "', so ONNX Runtime's dense operator runs instead, and the mask after it. 'python -m distile.onnx "
                  "convert --build' compiles the PolyKernels of a model. This warning appears once.");
    }
}

/** The share of elements that are 0 or -0. */
template<typename Bits> float share_of_zeros(const Tensor &tensor) {
    constexpr Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
    const auto *bits = tensor.as<Bits>();
    const auto zeros = std::count_if(bits, bits + tensor.elements(), [](Bits one) { return (one & ~sign) == 0; });
    return static_cast<float>(zeros) / static_cast<float>(std::max<int64_t>(1, tensor.elements()));
}

/** The extents of a filter in an order, whose input channels are those of a group. */
distile_filter_extents extents_of(const Shape &shape, distile_weights_order order) {
    const auto extent = [&shape](size_t i) { return i < shape.size() ? number(shape[i], "an extent") : 1; };
    const bool inner_first = order == DISTILE_IO || order == DISTILE_IOHW;
    return {extent(inner_first ? 1 : 0), extent(inner_first ? 0 : 1), extent(2), extent(3)};
}

/** The share of a quantized filter's quads that are 0: blocks of four consecutive input channels of a group. */
float share_of_zero_quads(const Tensor &filter, distile_weights_order order) {
    constexpr int64_t quad = 4;
    const bool inner_first = order == DISTILE_IO || order == DISTILE_IOHW;
    const distile_filter_extents extents = extents_of(filter.shape, order);
    const int64_t inputs = extents.in_channels, outputs = extents.out_channels;
    const int64_t taps = int64_t{extents.kernel_h} * extents.kernel_w;
    const int64_t input_stride = (inner_first ? outputs : 1) * taps, output_stride = (inner_first ? 1 : inputs) * taps;
    const auto *weights = filter.as<int8_t>();
    int64_t zeros = 0, quads = 0;
    for (int64_t output = 0; output < outputs; output++) {
        for (int64_t first = 0; first < inputs; first += quad) {
            for (int64_t tap = 0; tap < taps; tap++, quads++) {
                const int8_t *weight = weights + output * output_stride + first * input_stride + tap;
                bool is_zero = true;
                for (int64_t input = first; input < std::min(first + quad, inputs); input++, weight += input_stride) {
                    is_zero = is_zero && *weight == 0;
                }
                zeros += is_zero ? 1 : 0;
            }
        }
    }
    return static_cast<float>(zeros) / static_cast<float>(std::max<int64_t>(1, quads));
}

/** The zeros in a filter, of which the device has code that skips them, for an input of a type. */
Zeros zeros_of(const Tensor &filter, distile_weights_order order, distile_device device, distile_dtype input) {
    Zeros zeros;
    switch (filter.dtype()) {
    case DISTILE_FLOAT32:
        zeros.share = share_of_zeros<uint32_t>(filter);
        break;
    case DISTILE_FLOAT16:
    case DISTILE_BFLOAT16:
        zeros.share = share_of_zeros<uint16_t>(filter);
        break;
    case DISTILE_INT8:
        zeros.share = device == DISTILE_CPU ? share_of_zero_quads(filter, order) : 0;
        break;
    default:
        return zeros;
    }
    zeros.two_of_four =
        device == DISTILE_CUDA && filter.dtype() != DISTILE_INT8 &&
        bindings::keeps_two_of_four({filter.data, filter.dtype(), order, extents_of(filter.shape, order)}, input);
    return zeros;
}

}  // namespace

Shape filter_shape(const NodeView &node) {
    const auto filter = node.constant(input_filter);
    if (!filter) {
        fail("the weights of node '" + node.name() + "' are not an initializer");
    }
    return filter->shape;
}

WeightedKernel::WeightedKernel(const Setup &setup, const Description &what)
    : LeasingKernel(setup), order_(what.order), layout_(what.layout),
      activation_(bindings::activation_of(setup.node.text("activation", "none"))), out_channels_(what.out_channels),
      output_type_(element_type(setup.output_type)), filter_(setup.node.constant(input_filter).value()),
      bias_(setup.node.constant(input_bias)),
      wanted_(what.key, zeros_of(filter_, what.order, setup.device, setup.type)) {
    if (is_quantized(setup.type)) {
        quantization_.emplace(setup, what.out_channels, activation_.function);
    }
    if (bias_ && bias_->elements() != out_channels_) {
        fail("the bias of node '" + setup.node.name() + "' has " + std::to_string(bias_->elements()) +
             " elements instead of " + std::to_string(out_channels_));
    }
    if (wanted_.get()) {
        return;
    }
    if (setup.device != DISTILE_CPU) {
        fail("no PolyKernel for NVIDIA GPUs computes " + what.words + " of node '" + setup.node.name() +
             "': leave the node as it was" + (wanted_.may_come() ? ", or try again when it is built" : ""));
    }
    if (!wanted_.may_come()) {
        warn_once(setup.node, what.words);
    }
}

distile_weights *WeightedKernel::weights(const Lease &lease, distile_kernel *kernel,
                                         const distile_polykernel &polykernel) {
    Packed &place = packed_[static_cast<size_t>(bindings::serves(polykernel))];
    std::call_once(place.once, [&] {
        distile_weights_source source{};
        source.filter = filter_.data;
        source.dtype = filter_.dtype();
        if (quantization_ && quantization_->int4_filter()) {
            source.filter = quantization_->int4_filter();
            source.dtype = DISTILE_INT4;
        }
        source.order = order_;
        source.bias = bias_ ? bias_->as<float>() : nullptr;
        const distile_quantization numbers = quantization_ ? quantization_->numbers() : distile_quantization{};
        source.quantization = quantization_ ? &numbers : nullptr;
        source.slope = &activation_.slope;
        distile_weights *packed = nullptr;
        check(distile_weights_pack(kernel, &source, &packed), lease->context());
        place.weights.reset(packed);
    });
    return place.weights.get();
}

Output WeightedKernel::output_of(const Call &call, const Lease &lease, const Tensor &x, int32_t height,
                                 int32_t width) const {
    return {call,  lease,         {nullptr, output_type_, x.shape}, layout_, height,
            width, out_channels_, call.optional(input_kept)};
}

void WeightedKernel::compute(const Call &call) {
    const Lease lease = lease_for(call);
    const Tensor x = call.input(input_x);
    const bool are_tokens = layout_ == ImageLayout::tokens && !x.shape.empty() && x.shape.back() > 0;
    const std::optional<int64_t> tokens =
        are_tokens ? std::optional<int64_t>(x.elements() / x.shape.back()) : std::nullopt;
    if (const distile_polykernel *polykernel = wanted_.get(tokens)) {
        run_masked(call, lease, *polykernel);
    } else {
        run_dense(call, lease);
    }
}

void WeightedKernel::run_masked(const Call &call, const Lease &lease, const distile_polykernel &polykernel) {
    const Tensor x = call.input(input_x);
    distile_kernel *kernel = lease->kernel(polykernel);
    const distile_tensor input = read(lease, x, layout_, x_scratch);
    int32_t height = 0, width = 0;
    check(distile_kernel_output_shape(kernel, input.height, input.width, &height, &width), lease->context());
    if (height == 0 || width == 0) {
        fail("the input is smaller than the operator's window");
    }
    const Output output = output_of(call, lease, x, height, width);
    distile_tensor residual{};
    distile_run_args args{};
    if (const auto given = call.optional(input_residual)) {
        residual = read(lease, *given, layout_, other_scratch);
        args.residual = &residual;
    }
    args.input = &input;
    args.output = &output.view();
    args.weights = weights(lease, kernel, polykernel);
    args.mask = mask_of(lease, call.input(input_mask), layout_, input.batch);
    args.inactive = output.inactive();
    check(distile_run(kernel, &args), lease->context());
    output.finish(args.mask);
}

distile_tensor WeightedKernel::real_residual(const Lease &lease, const distile_tensor &stored) const {
    distile_tensor real = distile_tensor_make(nullptr, stored.batch, stored.height, stored.width, stored.channels);
    real.data = lease.scratch(dense_scratch,
                              static_cast<size_t>(real.batch) * static_cast<size_t>(real.stride_n) * sizeof(float));
    distile_scale numbers = quantization_->numbers().residual;
    numbers.scale /= quantization_->unit();
    check(distile_dequantize(lease->context(), &stored, nullptr, numbers, &real), lease->context());
    return real;
}

void WeightedKernel::store(const Lease &lease, const distile_tensor &real, distile_mask *mask,
                           const Output &output) const {
    distile_scale numbers = quantization_->numbers().output;
    if (output.inactive() == DISTILE_ZERO) {
        const distile_tensor &view = output.view();
        std::memset(view.data, numbers.zero_point,
                    static_cast<size_t>(view.batch) * static_cast<size_t>(view.stride_n));
    }
    numbers.scale /= quantization_->unit();
    check(distile_quantize(lease->context(), &real, mask, numbers, &output.view()), lease->context());
}

void WeightedKernel::run_dense(const Call &call, const Lease &lease) const {
    const Tensor x = call.input(input_x);
    const distile_tensor result = dense_->run(call, lease, x, filter_, bias_);
    const Output output = output_of(call, lease, x, result.height, result.width);
    const bool quantizes = output.view().dtype != result.dtype;
    distile_tensor residual{}, target = quantizes ? result : output.view();
    distile_combine_args args{};
    if (const auto given = call.optional(input_residual)) {
        residual = read(lease, *given, layout_, other_scratch);
        if (quantizes) {
            residual = real_residual(lease, residual);
        }
        args.other = &residual;
        args.combination = DISTILE_ADD;
    }
    args.input = &result;
    args.output = &target;
    args.mask = mask_of(lease, call.input(input_mask), layout_, result.batch);
    args.activation = activation_.function;
    args.slope = &activation_.slope;
    args.inactive = output.inactive();
    check(distile_combine(lease->context(), &args), lease->context());
    if (quantizes) {
        store(lease, target, args.mask, output);
    }
    output.finish(args.mask);
}

}  // namespace distile::ort
