#include "python/csrc/dense.h"
#include "bindings/activation.h"
#include <cmath>

namespace distile::python {

namespace {

Tensor unsqueezed(Tensor tensor, int64_t dimension) {
    return torch::stable::unsqueeze(tensor, dimension);
}

/** The type in which PyTorch's operators compute a tensor: those of 8 bits they only convert. */
ScalarType computed_type(const Tensor &tensor) {
    const std::optional<distile_dtype> type = type_of(tensor);
    return type && distile_dtype_size(*type) == 1 ? ScalarType::Float : tensor.scalar_type();
}

Tensor computed(const Tensor &tensor) {
    return torch::stable::to(tensor, computed_type(tensor));
}

/** A tensor where `active` is, and elsewhere 0. */
Tensor where(const Tensor &active, const Tensor &tensor) {
    return call("aten::where", "self", active, tensor, torch::stable::new_zeros(tensor, Ints{}));
}

/** A result at active pixels, with 0 elsewhere, or what `out` holds. */
Tensor written(const Tensor &active, const Tensor &result, const Tensor *out, bool zero) {
    if (!out) {
        return where(active, result);
    }
    Tensor output = *out;
    return torch::stable::copy_(output,
                                zero ? where(active, result) : call("aten::where", "self", active, result, output));
}

/** The activation with this name or, with a slope in its name, what PyTorch's operators without numbers make of it. */
Tensor activated(const Tensor &tensor, const std::string &activation) {
    const bindings::Activation found = bindings::activation_of(activation);
    switch (found.function) {
    case DISTILE_ACTIVATION_NONE:
        return tensor;
    case DISTILE_ACTIVATION_GELU:
        return call("aten::gelu", "", tensor, std::string("none"));
    case DISTILE_ACTIVATION_LEAKY_RELU: {
        const Tensor below = call("aten::relu", "", call("aten::neg", "", tensor));
        return torch::stable::subtract(call("aten::relu", "", tensor), below, found.slope);
    }
    default:
        return call(("aten::" + activation).c_str(), "", tensor);
    }
}

/** Adds the residual and applies the activation, in the type of the input. */
Tensor stored_sum(const WeightedCall &call, const Tensor &result, const std::string &activation) {
    const Tensor sum = call.residual ? torch::stable::subtract(result, computed(*call.residual), -1) : result;
    return torch::stable::to(activated(sum, activation), call.input.scalar_type());
}

/** Adds the residual, applies the activation, and writes the active pixels in the type of the input. */
Tensor finish(const WeightedCall &call, const Tensor &result, const std::string &activation) {
    const bool images = result.dim() == 4;
    const Tensor stored = stored_sum(call, result, activation);
    const Tensor active = unsqueezed(torch::stable::to(call.mask, ScalarType::Bool), images ? 1 : 2);
    const Tensor found = written(active, stored, call.out, call.zero);
    using torch::headeronly::MemoryFormat;
    return call.out ? found
                    : torch::stable::contiguous(found, images ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous);
}

/** Weights in the type in which the input is computed, as PolyKernels pack them. */
Tensor weight_of(const WeightedCall &call) {
    return torch::stable::to(call.weight, computed_type(call.input));
}

OptionalTensor bias_of(const WeightedCall &call) {
    OptionalTensor bias;
    if (call.bias) {
        bias = torch::stable::to(*call.bias, computed_type(call.input));
    }
    return bias;
}

Tensor convolved(const WeightedCall &call, const Tensor &input, const Ints &stride, const Window &window) {
    const Ints &padding = window.padding;
    const Tensor padded = torch::stable::pad(input, Ints{padding[2], padding[3], padding[0], padding[1]});
    return python::call("aten::convolution", "", padded, weight_of(call), bias_of(call), stride, Ints{0, 0},
                        window.dilation, false, Ints{0, 0}, window.groups);
}

/** Which keys each query sees, [queries, keys]: the last query sees all. */
Tensor causal_mask(const Tensor &like, int64_t queries, int64_t keys) {
    const Tensor zeros = torch::stable::new_zeros(like, Ints{queries, keys}, ScalarType::Bool);
    return call("aten::tril", "", call("aten::logical_not", "", zeros), keys - queries);
}

/** Which keys queries see, broadcast to [N, heads, queries, keys]; nothing if they see all. */
OptionalTensor visible(const AttentionCall &call) {
    OptionalTensor found;
    if (call.causal) {
        found = causal_mask(call.query, call.query.size(2), call.key.size(2));
    }
    if (call.key_mask) {
        const Tensor keys = unsqueezed(unsqueezed(torch::stable::to(*call.key_mask, ScalarType::Bool), 1), 1);
        found = found ? python::call("aten::logical_and", "", keys, *found) : keys;
    }
    return found;
}

}  // namespace

Tensor dense_conv2d(const WeightedCall &call, const Window &window, const std::string &activation) {
    return finish(call, convolved(call, computed(call.input), window.stride, window), activation);
}

Tensor unmasked_conv2d(const WeightedCall &call, const Window &window, const std::string &activation) {
    return stored_sum(call, convolved(call, computed(call.input), window.stride, window), activation);
}

Tensor dense_upsample_conv2d(const WeightedCall &call, const Ints &scale, const Window &window,
                             const std::string &activation) {
    Tensor larger = computed(call.input);
    for (const int64_t axis : {0, 1}) {
        larger = python::call("aten::repeat_interleave", "self_int", larger, scale[static_cast<size_t>(axis)],
                              std::optional<int64_t>(axis + 2), std::optional<int64_t>());
    }
    return finish(call, convolved(call, larger, {1, 1}, window), activation);
}

Tensor dense_conv_transpose2d(const WeightedCall &call, const Ints &output_padding, const Window &window,
                              const std::string &activation) {
    const auto &[stride, padding, dilation, groups] = window;
    const Tensor full = python::call("aten::convolution", "", computed(call.input), weight_of(call), bias_of(call),
                                     stride, Ints{0, 0}, dilation, true, output_padding, groups);
    const Tensor cut = torch::stable::pad(full, Ints{-padding[2], -padding[3], -padding[0], -padding[1]});
    return finish(call, cut, activation);
}

Tensor dense_linear(const WeightedCall &call, const std::string &activation) {
    return finish(call, python::call("aten::linear", "", computed(call.input), weight_of(call), bias_of(call)),
                  activation);
}

Tensor dense_attention(const AttentionCall &call) {
    const OptionalTensor seen = visible(call);
    Tensor value = computed(call.value);
    if (call.key_mask) {  // Keys that are not active may hold anything.
        value = where(unsqueezed(unsqueezed(torch::stable::to(*call.key_mask, ScalarType::Bool), 1), 3), value);
    }
    const std::optional<double> scale(call.scale != 0 ? call.scale
                                                      : 1 / std::sqrt(static_cast<double>(call.query.size(3))));
    Tensor result = python::call("aten::scaled_dot_product_attention", "", computed(call.query), computed(call.key),
                                 value, seen, 0.0, false, scale, false);
    if (seen) {  // Rows without a key are 0.
        result = where(python::call("aten::any", "dim", *seen, int64_t{-1}, true), result);
    }
    const Tensor rows = unsqueezed(unsqueezed(torch::stable::to(call.mask, ScalarType::Bool), 1), 3);
    const Tensor found = written(rows, torch::stable::to(result, call.query.scalar_type()), call.out, call.zero);
    return call.out ? found
                    : torch::stable::transpose(torch::stable::contiguous(torch::stable::transpose(found, 1, 2)), 1, 2);
}

}  // namespace distile::python
