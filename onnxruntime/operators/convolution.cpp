#include "bindings/activation.h"
#include "onnxruntime/dense_quantized.h"
#include "onnxruntime/operators/window.h"
#include "onnxruntime/weighted.h"
#include <algorithm>
#include <distile/layout.h>
#include <distile/upsample.h>

namespace distile::ort {

namespace {

/** A convolution as its PolyKernel describes it, and for transposed ones the rows and columns added to the output. */
struct Convolution {
    distile_operator_kind kind;
    distile_conv2d conv;
    Shape output_padding;
};

const char *name_of(distile_operator_kind kind) {
    return kind == DISTILE_MASKED_CONV2D             ? "a convolution"
           : kind == DISTILE_MASKED_CONV_TRANSPOSE2D ? "a transposed convolution"
                                                     : "a convolution after upsampling";
}

/** The attribute `group`, which divides the channels along the first dimension of the weights. */
int32_t groups_of(const NodeView &node, int64_t channels, bool transposed) {
    const int32_t groups = number(node.integer("group", 1), "group");
    if (groups < 1 || channels % groups != 0) {
        fail("the group of node '" + node.name() + "' is " + std::to_string(groups) + ", but must divide its " +
             std::to_string(channels) + (transposed ? " input" : " output") + " channels");
    }
    return groups;
}

Convolution describe(const NodeView &node, distile_operator_kind kind) {
    const Shape filter = filter_shape(node);
    if (filter.size() != 4) {
        fail("the weights of a convolution have " + std::to_string(filter.size()) + " dimensions instead of 4");
    }
    const bool transposed = kind == DISTILE_MASKED_CONV_TRANSPOSE2D;
    const Shape steps =
        kind == DISTILE_MASKED_UPSAMPLE_CONV2D ? node.integers("scales", {2, 2}) : node.integers("strides", {1, 1});
    const Shape kernel{filter[2], filter[3]};
    if (node.integers("kernel_shape", kernel) != kernel) {
        fail("the kernel_shape of node '" + node.name() + "' is not that of its weights, " + std::to_string(kernel[0]) +
             " and " + std::to_string(kernel[1]));
    }
    const NodeWindow of = window_of(node, kernel, steps);
    Convolution what{kind, {}, transposed ? node.integers("output_padding", {0, 0}) : Shape{0, 0}};
    distile_conv2d &conv = what.conv;
    conv.groups = groups_of(node, filter[0], transposed);
    conv.in_channels = number(filter[transposed ? 0 : 1] * (transposed ? 1 : conv.groups), "the number of channels");
    conv.out_channels = number(filter[transposed ? 1 : 0] * (transposed ? conv.groups : 1), "the number of channels");
    conv.kernel_h = of.window.kernel_h;
    conv.kernel_w = of.window.kernel_w;
    conv.stride_h = of.window.stride_h;
    conv.stride_w = of.window.stride_w;
    conv.dilation_h = of.window.dilation_h;
    conv.dilation_w = of.window.dilation_w;
    conv.pad_top = of.window.pad_top;
    conv.pad_left = of.window.pad_left;
    conv.pad_bottom = of.pad_bottom - number(what.output_padding[0], "output_padding");
    conv.pad_right = of.pad_right - number(what.output_padding[1], "output_padding");
    conv.epilogue = bindings::activation_of(node.text("activation", "none")).function;
    conv.residual = node.has_input(input_residual) ? 1 : 0;
    return what;
}

int64_t output_extent(distile_operator_kind kind, int64_t in, int64_t step, int64_t window, int64_t pads) {
    switch (kind) {
    case DISTILE_MASKED_CONV_TRANSPOSE2D:
        return (in - 1) * step + window - pads;
    case DISTILE_MASKED_UPSAMPLE_CONV2D:
        return in * step + pads - window + 1;
    default:
        return (in + pads - window) / step + 1;
    }
}

/** ONNX Runtime's convolution, for images in NCHW. */
class DenseConvolution : public Dense {
public:
    DenseConvolution(const Setup &setup, const Convolution &what, ImageLayout layout)
        : what_(what), layout_(layout), node_(make_node(setup, what)) {
    }

    distile_tensor run(const Call &call, const Lease &lease, const Tensor &x, const Tensor &filter,
                       const std::optional<Tensor> &bias) const override {
        const distile_conv2d &conv = what_.conv;
        distile_tensor images = read(lease, x, layout_, dense_scratch);
        if (what_.kind == DISTILE_MASKED_UPSAMPLE_CONV2D) {
            images = upsampled(lease, images);
        }
        const Tensor input = channels_first(lease, images, x.type);
        const auto extent = [&](int64_t in, int64_t step, int64_t dilation, int64_t kernel, int64_t pads) {
            const bool upsampling = what_.kind == DISTILE_MASKED_UPSAMPLE_CONV2D;
            return output_extent(upsampling ? DISTILE_MASKED_CONV2D : what_.kind, in, upsampling ? 1 : step,
                                 dilation * (kernel - 1) + 1, pads);
        };
        const int64_t height = extent(input.shape[2], conv.stride_h, conv.dilation_h, conv.kernel_h,
                                      int64_t{conv.pad_top} + conv.pad_bottom);
        const int64_t width = extent(input.shape[3], conv.stride_w, conv.dilation_w, conv.kernel_w,
                                     int64_t{conv.pad_left} + conv.pad_right);
        if (height < 1 || width < 1) {
            fail("the input is smaller than the operator's window");
        }
        Tensor output{nullptr, x.type, {input.shape[0], conv.out_channels, height, width}};
        output.data = lease.scratch(dense_scratch + 3, bytes_of(output));
        std::vector<Tensor> inputs{input, filter};
        if (bias) {
            inputs.push_back(*bias);
        }
        node_.run(call, inputs, output);
        return read(lease, output, ImageLayout::nchw, dense_scratch + 4);
    }

private:
    static DenseNode make_node(const Setup &setup, const Convolution &what) {
        const distile_conv2d &conv = what.conv;
        const bool transposed = what.kind == DISTILE_MASKED_CONV_TRANSPOSE2D;
        const bool upsampling = what.kind == DISTILE_MASKED_UPSAMPLE_CONV2D;
        DenseNode::Attributes attributes{{{"group", conv.groups}}, {}, {}};
        attributes.lists = {{"kernel_shape", {conv.kernel_h, conv.kernel_w}},
                            {"strides", upsampling ? Shape{1, 1} : Shape{conv.stride_h, conv.stride_w}},
                            {"dilations", {conv.dilation_h, conv.dilation_w}},
                            {"pads",
                             {conv.pad_top, conv.pad_left, conv.pad_bottom + what.output_padding[0],
                              conv.pad_right + what.output_padding[1]}}};
        if (transposed) {
            attributes.lists.emplace_back("output_padding", what.output_padding);
        }
        return {setup.node,
                transposed ? "ConvTranspose" : "Conv",
                11,
                {{"T", element_type(setup.type)}},
                setup.node.has_input(input_bias) ? 3 : 2,
                attributes};
    }

    static size_t bytes_of(const Tensor &tensor) {
        return static_cast<size_t>(tensor.elements()) * distile_dtype_size(tensor.dtype());
    }

    distile_tensor upsampled(const Lease &lease, const distile_tensor &images) const {
        distile_tensor larger = distile_tensor_make(nullptr, images.batch, images.height * what_.conv.stride_h,
                                                    images.width * what_.conv.stride_w, images.channels);
        larger.dtype = images.dtype;
        const auto pixels = static_cast<size_t>(larger.batch) * static_cast<size_t>(larger.stride_n);
        larger.data = lease.scratch(dense_scratch + 1, pixels * distile_dtype_size(larger.dtype));
        const std::vector<uint8_t> bytes(pixels / static_cast<size_t>(larger.channels), 1);
        distile_upsample_args args{};
        args.input = &images;
        args.output = &larger;
        args.mask = lease->mask({bytes.data(), larger.batch, larger.height, larger.width});
        args.scale_h = what_.conv.stride_h;
        args.scale_w = what_.conv.stride_w;
        check(distile_upsample_nearest(lease->context(), &args), lease->context());
        return larger;
    }

    static Tensor channels_first(const Lease &lease, const distile_tensor &images, ElementType type) {
        Tensor tensor{nullptr, type, {images.batch, images.channels, images.height, images.width}};
        tensor.data = lease.scratch(dense_scratch + 2, bytes_of(tensor));
        distile_nchw nchw = distile_nchw_make(tensor.data, images.channels, images.height, images.width);
        nchw.dtype = images.dtype;
        check(distile_to_nchw(lease->context(), &images, &nchw), lease->context());
        return tensor;
    }

    Convolution what_;
    ImageLayout layout_;
    DenseNode node_;
};

template<distile_operator_kind kind> std::unique_ptr<Kernel> make(const Setup &setup) {
    const Convolution what = describe(setup.node, kind);
    const ImageLayout layout = image_layout(setup.node);
    const distile_conv2d &conv = what.conv;
    if (kind == DISTILE_MASKED_CONV_TRANSPOSE2D && conv.groups != 1) {
        fail("a masked transposed convolution has no groups: leave node '" + setup.node.name() + "' as it was");
    }
    const std::string words = std::string(name_of(kind)) + " of " + std::to_string(conv.in_channels) + " to " +
                              std::to_string(conv.out_channels) + " channels, " + std::to_string(conv.kernel_h) + "x" +
                              std::to_string(conv.kernel_w) + ",";
    const distile_weights_order order = kind == DISTILE_MASKED_CONV_TRANSPOSE2D ? DISTILE_IOHW : DISTILE_OIHW;
    return std::make_unique<WeightedKernel>(
        setup,
        WeightedKernel::Description{bindings::OperatorKey(setup.device, {setup.type, setup.output_type}, kind, conv),
                                    words, order, layout, conv.out_channels},
        [&](const Quantization *quantization) -> std::unique_ptr<Dense> {
            if (quantization) {
                return std::make_unique<DenseQuantized>(setup, kind, conv, order, layout, *quantization);
            }
            return std::make_unique<DenseConvolution>(setup, what, layout);
        });
}

}  // namespace

std::vector<OperatorType> convolution_types() {
    return {{"MaskedConv", weighted_inputs(), {any_type}, make<DISTILE_MASKED_CONV2D>},
            {"MaskedConvTranspose", weighted_inputs(), {any_type}, make<DISTILE_MASKED_CONV_TRANSPOSE2D>},
            {"MaskedUpsampleConv", weighted_inputs(), {any_type}, make<DISTILE_MASKED_UPSAMPLE_CONV2D>},
            {"MaskedQLinearConv", quantized_inputs(), {type_of_output}, make<DISTILE_MASKED_CONV2D>, false, true},
            {"MaskedQLinearConvTranspose",
             quantized_inputs(),
             {type_of_output},
             make<DISTILE_MASKED_CONV_TRANSPOSE2D>,
             false,
             true}};
}

}  // namespace distile::ort
