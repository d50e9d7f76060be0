#include "onnxruntime/quantization.h"
#include <cmath>

namespace distile::ort {

namespace {

/** The elements of an initializer; none if the input is absent. */
template<typename Element> std::vector<Element> vector_of(const NodeView &node, size_t input, const std::string &name) {
    if (!node.has_input(input)) {
        return {};
    }
    const auto found = node.constant(input);
    if (!found) {
        fail("the " + name + " of node '" + node.name() + "' is not an initializer");
    }
    return {found->as<Element>(), found->as<Element>() + found->elements()};
}

[[noreturn]] void fail_count(const NodeView &node, const std::string &name, size_t count, size_t wanted) {
    fail("the " + name + " of node '" + node.name() + "' has " + std::to_string(count) + " elements instead of " +
         std::to_string(wanted));
}

template<typename Element> int32_t zero_point_of(const NodeView &node, size_t input, const std::string &name) {
    const auto found = vector_of<Element>(node, input, "zero point of the " + name);
    if (found.size() > 1) {
        fail_count(node, "zero point of the " + name, found.size(), 1);
    }
    return found.empty() ? 0 : found[0];
}

/** Scales: one, or one for each channel. */
std::vector<float> scales_of(const NodeView &node, size_t input, const std::string &name, size_t channels) {
    std::vector<float> scales = vector_of<float>(node, input, "scale of the " + name);
    if (scales.size() != 1 && scales.size() != channels) {
        fail_count(node, "scale of the " + name, scales.size(), channels);
    }
    for (const float scale : scales) {
        if (!(scale > 0) || std::isinf(scale)) {
            fail("a scale of the " + name + " of node '" + node.name() + "' is " + std::to_string(scale) +
                 "; it must be above 0 and finite");
        }
    }
    scales.resize(channels, scales[0]);
    return scales;
}

/** The scale and the zero point of a tensor, which are inputs beside each other: both 0 for one of float32. */
distile_scale scale_of(const NodeView &node, distile_dtype type, size_t input, const std::string &name) {
    if (!is_quantized(type)) {
        if (node.has_input(input)) {
            fail("the " + name + " of node '" + node.name() +
                 "' has a scale, but no zero point of uint8 or int8, whose type is that of the " + name);
        }
        return {};
    }
    return {scales_of(node, input, name, 1)[0], type == DISTILE_UINT8 ? zero_point_of<uint8_t>(node, input + 1, name)
                                                                      : zero_point_of<int8_t>(node, input + 1, name)};
}

std::vector<uint8_t> int4_filter_of(const NodeView &node) {
    const int64_t bits = node.integer("weight_bits", 8);
    if (bits != 4 && bits != 8) {
        fail("weight_bits of node '" + node.name() + "' is " + std::to_string(bits) + "; it must be 4 or 8");
    }
    std::vector<uint8_t> halves;
    if (bits == 8) {
        return halves;
    }
    const auto filter = vector_of<int8_t>(node, input_filter, "filter");
    halves.resize((filter.size() + 1) / 2);
    for (size_t i = 0; i < filter.size(); i++) {
        if (filter[i] < -8 || filter[i] > 7) {
            fail("a weight of node '" + node.name() + "' is " + std::to_string(filter[i]) +
                 ", but weight_bits says that they are from -8 to 7");
        }
        halves[i / 2] = static_cast<uint8_t>(halves[i / 2] | (filter[i] & 15) << i % 2 * 4);
    }
    return halves;
}

}  // namespace

Quantization::Quantization(const Setup &setup, int32_t out_channels, distile_activation epilogue)
    : in_output_units_(is_quantized(setup.output_type) &&
                       (epilogue == DISTILE_ACTIVATION_NONE || epilogue == DISTILE_ACTIVATION_RELU)) {
    const NodeView &node = setup.node;
    const auto channels = static_cast<size_t>(out_channels);
    input_ = scale_of(node, setup.type, input_x_scale, "input");
    output_ = scale_of(node, setup.output_type, input_y_scale, "output");
    const bool has_residual = node.has_input(input_residual);
    residual_ = scale_of(node, has_residual ? setup.output_type : DISTILE_FLOAT32, input_residual_scale, "residual");
    filter_scales_ = scales_of(node, input_filter_scale, "weights", channels);
    int4_filter_ = int4_filter_of(node);
    bias_ = vector_of<int32_t>(node, input_integer_bias, "integer bias");
    if (!bias_.empty() && bias_.size() != channels) {
        fail_count(node, "integer bias", bias_.size(), channels);
    }
}

distile_quantization Quantization::numbers() const {
    distile_quantization numbers{};
    numbers.input = input_;
    numbers.filter_scales = filter_scales_.data();
    numbers.bias = bias_.empty() ? nullptr : bias_.data();
    numbers.output = output_;
    numbers.residual = residual_;
    return numbers;
}

}  // namespace distile::ort
