#include "bench/peers/onednn/onednn_conv2d.h"
#include "bench/peers/onednn/onednn_engine.h"
#include "runtime/base/activation.h"
#include "runtime/kinds/filter.h"
#include <algorithm>
#include <oneapi/dnnl/dnnl_debug.h>
#include <stdexcept>
#include <utility>
#include <vector>

namespace distile {

namespace {

using dnnl::memory;

/** Runs the body and turns oneDNN's exceptions, which name a status but no cause, into ours. */
template<typename Body> auto translated(const char *what, const Body &body) {
    try {
        return body();
    } catch (const dnnl::error &error) {
        throw std::runtime_error(std::string("oneDNN cannot ") + what + ": " + error.what() + " (" +
                                 dnnl_status2str(error.status) + "); set ONEDNN_VERBOSE=1 to see its reason");
    }
}

std::string extents(const distile_tensor &tensor) {
    return std::to_string(tensor.batch) + " x " + std::to_string(tensor.height) + " x " + std::to_string(tensor.width) +
           " x " + std::to_string(tensor.channels);
}

/** oneDNN names dimensions in the order n, c, h, w whatever the layout in memory. */
memory::desc describe(const distile_tensor &tensor) {
    // The stride between the images of a batch of one means nothing, but could hide from oneDNN that the tensor is
    // contiguous.
    const int64_t stride_n = tensor.batch > 1 ? tensor.stride_n : tensor.stride_h * tensor.height;
    return {{tensor.batch, tensor.channels, tensor.height, tensor.width},
            memory::data_type::f32,
            {stride_n, 1, tensor.stride_h, tensor.stride_w}};
}

/** A convolution whose image includes the input's border. A transposed convolution, or one after upsampling, ignores
 * the border, because its padding does not belong to the input. */
struct View {
    View(const distile_conv2d &conv, distile_operator_kind kind, const distile_tensor &given)
        : input(given), pad_before{conv.pad_top, conv.pad_left}, pad_after{conv.pad_bottom, conv.pad_right} {
        if (kind != DISTILE_MASKED_CONV2D) {
            return;
        }
        const int32_t top = std::min(given.border_top, conv.pad_top);
        const int32_t bottom = std::min(given.border_bottom, conv.pad_bottom);
        const int32_t left = std::min(given.border_left, conv.pad_left);
        const int32_t right = std::min(given.border_right, conv.pad_right);
        input.data = static_cast<float *>(given.data) - top * given.stride_h - left * given.stride_w;
        input.height += top + bottom;
        input.width += left + right;
        pad_before = {conv.pad_top - top, conv.pad_left - left};
        pad_after = {conv.pad_bottom - bottom, conv.pad_right - right};
    }

    distile_tensor input;
    memory::dims pad_before, pad_after;
};

/** The filter as [kernel row][kernel column][input channel of a group][output channel], and the bias: both with batch
 * normalisation folded in, by the packing of our kernels with all output channels in one block. */
std::vector<PackedArray> fold(const distile_conv2d &conv, const distile_weights_source &source) {
    if (!source.filter) {
        throw std::runtime_error("the filter is null");
    }
    if (source.dtype != 0 && source.dtype != DISTILE_FLOAT32) {
        throw std::runtime_error("the filter is not of type float32");
    }
    if (source.order < DISTILE_OIHW || source.order > DISTILE_IOHW) {
        throw std::runtime_error("the order of the weights is " + std::to_string(static_cast<int>(source.order)) +
                                 ", which is none that distile knows");
    }
    if ((source.bn_mean == nullptr) != (source.bn_variance == nullptr) ||
        (!source.bn_mean && (source.bn_gamma || source.bn_beta))) {
        throw std::runtime_error("batch normalisation needs both the mean and the variance");
    }
    if (conv.groups < 1 || conv.in_channels % conv.groups != 0 || conv.out_channels % conv.groups != 0) {
        throw std::runtime_error("the number of groups, " + std::to_string(conv.groups) + ", does not divide the " +
                                 std::to_string(conv.in_channels) + " input and " + std::to_string(conv.out_channels) +
                                 " output channels");
    }
    return pack_filter({conv.out_channels, conv.in_channels / conv.groups, conv.kernel_h, conv.kernel_w},
                       single_taps(conv.kernel_h), single_taps(conv.kernel_w),
                       {source, static_cast<const float *>(source.filter)}, conv.out_channels);
}

void check_tensor(const distile_tensor &tensor, const char *name, const distile_tensor &due) {
    if (!tensor.data) {
        throw std::runtime_error(std::string("the data of the ") + name + " is null");
    }
    if (tensor.dtype != DISTILE_FLOAT32) {
        throw std::runtime_error(std::string("the ") + name + " is not of type float32");
    }
    if (tensor.batch != due.batch || tensor.height != due.height || tensor.width != due.width ||
        tensor.channels != due.channels) {
        throw std::runtime_error(std::string("the ") + name + " is " + extents(tensor) +
                                 " (batch, height, width, channels); due is " + extents(due));
    }
}

bool same_view(const distile_tensor &a, const distile_tensor &b) {
    return a.data == b.data && describe(a) == describe(b);
}

/** How a primitive gets the residual: oneDNN adds to the values of the output, or reads another tensor. */
enum class Residual { none, output, tensor };

}  // namespace

struct OneDnnConv2d::Impl {
    /** A primitive of oneDNN and its memory objects. */
    struct Step {
        dnnl::primitive forward;
        std::unordered_map<int, memory> arguments;
    };
    /** The steps for one shape. Every call sets the addresses of the caller's tensors. */
    struct Primitive {
        memory::desc input, residual, output;
        memory::dims pad_before;
        Residual kind;
        std::string implementation;
        std::vector<Step> steps; /**< The convolution; in front of it, upsampling where there is any. */
    };

    Impl(std::shared_ptr<OneDnnEngine::Impl> shared, const distile_conv2d &geometry,
         const distile_weights_source &source, OneDnnMath precision, distile_operator_kind operator_kind)
        : engine(std::move(shared)), conv(geometry), math(precision), kind(operator_kind),
          slope(slope_of(source.slope)) {
        std::vector<PackedArray> folded = fold(conv, source);
        filter = std::move(folded[0].values);
        bias = std::move(folded[1].values);
        const int64_t in = conv.in_channels / conv.groups, out = conv.out_channels, group_out = out / conv.groups;
        memory::dims dims = {group_out, in, conv.kernel_h, conv.kernel_w};
        memory::dims strides = {1, out, conv.kernel_w * in * out, in * out};
        if (conv.groups != 1) {
            // Groups are a dimension of their own, because their output channels are adjacent.
            dims.insert(dims.begin(), conv.groups);
            strides.insert(strides.begin(), group_out);
        }
        filter_desc = {dims, memory::data_type::f32, strides};
        bias_desc = {{conv.out_channels}, memory::data_type::f32, memory::format_tag::x};
    }

    /** The primitive for these tensors: a recent one, or a new one. */
    Primitive &primitive(const View &view, const distile_tensor *residual, const distile_tensor &output);
    std::unique_ptr<Primitive> make(const View &view, const distile_tensor *residual, const distile_tensor &output,
                                    Residual added);
    /** Adds the step that convolves `input`, in any layout if it is the output of an earlier step. */
    template<typename Convolution> void add_convolution(Primitive &made, dnnl::algorithm algorithm,
                                                        const memory::desc &input, const memory::dims &strides,
                                                        const View &view, const dnnl::primitive_attr &attributes);
    dnnl::primitive_attr attributes(const distile_tensor *residual, Residual added) const;
    /** The filter in the layout that a primitive needs. */
    memory packed(const memory::desc &desc);
    void check(const distile_tensor &input, const distile_tensor *residual, const distile_tensor &output) const;

    std::shared_ptr<OneDnnEngine::Impl> engine;
    distile_conv2d conv;
    OneDnnMath math;
    distile_operator_kind kind;
    float slope; /**< The epilogue's, if it has one. */
    PackedValues filter, bias;
    memory::desc filter_desc, bias_desc;
    std::vector<memory> packings;
    std::vector<std::unique_ptr<Primitive>> primitives;
};

dnnl::primitive_attr OneDnnConv2d::Impl::attributes(const distile_tensor *residual, Residual added) const {
    dnnl::post_ops steps;
    if (added == Residual::output) {
        steps.append_sum(1.0f);
    } else if (added == Residual::tensor) {
        steps.append_binary(dnnl::algorithm::binary_add, describe(*residual));
    }
    switch (conv.epilogue) {
    case DISTILE_ACTIVATION_NONE:
        break;
    case DISTILE_ACTIVATION_RELU:
        steps.append_eltwise(dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
        break;
    case DISTILE_ACTIVATION_RELU6:
        steps.append_eltwise(dnnl::algorithm::eltwise_clip, 0.0f, 6.0f);
        break;
    case DISTILE_ACTIVATION_SILU:
        steps.append_eltwise(dnnl::algorithm::eltwise_swish, 1.0f, 0.0f);
        break;
    case DISTILE_ACTIVATION_GELU:
        steps.append_eltwise(dnnl::algorithm::eltwise_gelu_erf, 0.0f, 0.0f);
        break;
    case DISTILE_ACTIVATION_SIGMOID:
        steps.append_eltwise(dnnl::algorithm::eltwise_logistic, 0.0f, 0.0f);
        break;
    case DISTILE_ACTIVATION_HARDSIGMOID:
        steps.append_eltwise(dnnl::algorithm::eltwise_hardsigmoid, 1.0f / 6, 0.5f);
        break;
    case DISTILE_ACTIVATION_HARDSWISH:
        steps.append_eltwise(dnnl::algorithm::eltwise_hardswish, 1.0f / 6, 0.5f);
        break;
    case DISTILE_ACTIVATION_TANH:
        steps.append_eltwise(dnnl::algorithm::eltwise_tanh, 0.0f, 0.0f);
        break;
    case DISTILE_ACTIVATION_ELU:
        steps.append_eltwise(dnnl::algorithm::eltwise_elu, 1.0f, 0.0f);
        break;
    case DISTILE_ACTIVATION_MISH:
        steps.append_eltwise(dnnl::algorithm::eltwise_mish, 0.0f, 0.0f);
        break;
    case DISTILE_ACTIVATION_LEAKY_RELU:
        steps.append_eltwise(dnnl::algorithm::eltwise_relu, slope, 0.0f);
        break;
    }
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(steps);
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_fpmath_mode(math == OneDnnMath::any ? dnnl::fpmath_mode::any : dnnl::fpmath_mode::strict);
    return attributes;
}

memory OneDnnConv2d::Impl::packed(const memory::desc &desc) {
    for (const memory &packing : packings) {
        if (packing.get_desc() == desc) {
            return packing;
        }
    }
    memory source(filter_desc, engine->engine, filter.data());
    memory target(desc, engine->engine);
    dnnl::reorder(source, target).execute(engine->stream, source, target);
    engine->stream.wait();
    packings.push_back(target);
    return target;
}

template<typename Convolution> void OneDnnConv2d::Impl::add_convolution(Primitive &made, dnnl::algorithm algorithm,
                                                                        const memory::desc &input,
                                                                        const memory::dims &strides, const View &view,
                                                                        const dnnl::primitive_attr &attributes) {
    const memory::desc any_filter(filter_desc.get_dims(), memory::data_type::f32, memory::format_tag::any);
    // oneDNN counts the pixels that a dilation skips.
    const typename Convolution::primitive_desc desc(
        engine->engine, dnnl::prop_kind::forward_inference, algorithm, input, any_filter, bias_desc, made.output,
        strides, {conv.dilation_h - 1, conv.dilation_w - 1}, view.pad_before, view.pad_after, attributes);
    const dnnl::engine &device = engine->engine;
    made.implementation = desc.impl_info_str();
    made.steps.push_back({Convolution(desc),
                          {{DNNL_ARG_SRC, memory(desc.src_desc(), device, nullptr)},
                           {DNNL_ARG_WEIGHTS, packed(desc.weights_desc())},
                           {DNNL_ARG_BIAS, memory(bias_desc, device, bias.data())},
                           {DNNL_ARG_DST, memory(made.output, device, nullptr)},
                           {DNNL_ARG_SCRATCHPAD, memory(desc.scratchpad_desc(), device)}}});
    if (made.kind == Residual::tensor) {
        made.steps.back().arguments.emplace(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1,
                                            memory(made.residual, device, nullptr));
    }
}

std::unique_ptr<OneDnnConv2d::Impl::Primitive> OneDnnConv2d::Impl::make(const View &view,
                                                                        const distile_tensor *residual,
                                                                        const distile_tensor &output, Residual added) {
    auto made = std::make_unique<Primitive>();
    made->input = describe(view.input);
    made->output = describe(output);
    made->residual = added == Residual::tensor ? describe(*residual) : memory::desc();
    made->pad_before = view.pad_before;
    made->kind = added;
    const memory::dims strides = {conv.stride_h, conv.stride_w};
    const dnnl::primitive_attr how = attributes(residual, added);
    if (kind == DISTILE_MASKED_CONV2D) {
        add_convolution<dnnl::convolution_forward>(*made, dnnl::algorithm::convolution_direct, made->input, strides,
                                                   view, how);
        return made;
    }
    if (kind == DISTILE_MASKED_CONV_TRANSPOSE2D) {
        add_convolution<dnnl::deconvolution_forward>(*made, dnnl::algorithm::deconvolution_direct, made->input, strides,
                                                     view, how);
        return made;
    }
    const distile_tensor &input = view.input;
    const memory::desc any_upsampled({input.batch, input.channels, input.height * strides[0], input.width * strides[1]},
                                     memory::data_type::f32, memory::format_tag::any);
    add_convolution<dnnl::convolution_forward>(*made, dnnl::algorithm::convolution_direct, any_upsampled, {1, 1}, view,
                                               how);
    memory upsampled(made->steps.front().arguments.at(DNNL_ARG_SRC).get_desc(), engine->engine);
    made->steps.front().arguments.at(DNNL_ARG_SRC) = upsampled;
    const dnnl::resampling_forward::primitive_desc desc(engine->engine, dnnl::prop_kind::forward_inference,
                                                        dnnl::algorithm::resampling_nearest, made->input,
                                                        upsampled.get_desc());
    made->implementation += std::string(" after ") + desc.impl_info_str();
    made->steps.insert(made->steps.begin(),
                       {dnnl::resampling_forward(desc),
                        {{DNNL_ARG_SRC, memory(made->input, engine->engine, nullptr)}, {DNNL_ARG_DST, upsampled}}});
    return made;
}

OneDnnConv2d::Impl::Primitive &OneDnnConv2d::Impl::primitive(const View &view, const distile_tensor *residual,
                                                             const distile_tensor &output) {
    const Residual added = !residual                      ? Residual::none
                           : same_view(*residual, output) ? Residual::output
                                                          : Residual::tensor;
    const memory::desc input_desc = describe(view.input), output_desc = describe(output);
    const memory::desc residual_desc = added == Residual::tensor ? describe(*residual) : memory::desc();
    for (const auto &known : primitives) {
        if (known->kind == added && known->pad_before == view.pad_before && known->input == input_desc &&
            known->output == output_desc && known->residual == residual_desc) {
            return *known;
        }
    }
    constexpr size_t most_primitives = 16;
    std::unique_ptr<Primitive> made = make(view, residual, output, added);
    if (primitives.size() == most_primitives) {
        primitives.erase(primitives.begin());
    }
    primitives.push_back(std::move(made));
    return *primitives.back();
}

void OneDnnConv2d::Impl::check(const distile_tensor &input, const distile_tensor *residual,
                               const distile_tensor &output) const {
    distile_tensor due = input;
    due.channels = conv.in_channels;
    check_tensor(input, "input", due);
    due.channels = conv.out_channels;
    const ImageSize size = find_operator_kind(kind)->output_size(&conv, {input.height, input.width});
    due.height = static_cast<int32_t>(size.height);
    due.width = static_cast<int32_t>(size.width);
    check_tensor(output, "output", due);
    if ((residual != nullptr) != (conv.residual != 0)) {
        throw std::runtime_error(residual ? "a residual is given, but the operator adds none"
                                          : "the operator adds a residual, but none is given");
    }
    if (residual) {
        check_tensor(*residual, "residual", due);
    }
}

OneDnnConv2d::OneDnnConv2d(const OneDnnEngine &engine, const distile_conv2d &conv,
                           const distile_weights_source &weights, OneDnnMath math, distile_operator_kind kind)
    : impl_(translated("hold the weights",
                       [&] { return std::make_unique<Impl>(engine.impl_, conv, weights, math, kind); })) {
}

OneDnnConv2d::~OneDnnConv2d() = default;
OneDnnConv2d::OneDnnConv2d(OneDnnConv2d &&) noexcept = default;
OneDnnConv2d &OneDnnConv2d::operator=(OneDnnConv2d &&) noexcept = default;

void OneDnnConv2d::run(const distile_tensor &input, const distile_tensor *residual, const distile_tensor &output) {
    impl_->check(input, residual, output);
    translated("run the convolution", [&] {
        const View view(impl_->conv, impl_->kind, input);
        Impl::Primitive &primitive = impl_->primitive(view, residual, output);
        std::unordered_map<int, memory> &last = primitive.steps.back().arguments;
        primitive.steps.front().arguments.at(DNNL_ARG_SRC).set_data_handle(view.input.data);
        last.at(DNNL_ARG_DST).set_data_handle(output.data);
        if (primitive.kind == Residual::tensor) {
            last.at(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1).set_data_handle(residual->data);
        }
        for (const Impl::Step &step : primitive.steps) {
            step.forward.execute(impl_->engine->stream, step.arguments);
        }
        impl_->engine->stream.wait();
    });
}

std::string OneDnnConv2d::implementation(const distile_tensor &input, const distile_tensor *residual,
                                         const distile_tensor &output) {
    impl_->check(input, residual, output);
    return translated("make the convolution", [&] {
        return impl_->primitive(View(impl_->conv, impl_->kind, input), residual, output).implementation;
    });
}

}  // namespace distile
