#include "bindings/activation.h"
#include "onnxruntime/dense_quantized.h"
#include "onnxruntime/weighted.h"

namespace distile::ort {

namespace {

/** ONNX Runtime's matrix product of all tokens. */
class DenseLinear : public Dense {
public:
    DenseLinear(const Setup &setup, bool transposed)
        : node_(setup.node, "Gemm", 13, {{"T", element_type(setup.type)}}, setup.node.has_input(input_bias) ? 3 : 2,
                {{{"transA", 0}, {"transB", transposed ? 1 : 0}}, {{"alpha", 1.0F}, {"beta", 1.0F}}, {}}),
          transposed_(transposed) {
    }

    distile_tensor run(const Call &call, const Lease &lease, const Tensor &x, const Tensor &filter,
                       const std::optional<Tensor> &bias) const override {
        distile_tensor result = read(lease, x, ImageLayout::tokens, dense_scratch);
        const int64_t rows = int64_t{result.batch} * result.width, channels = filter.shape[transposed_ ? 0 : 1];
        const Tensor input{x.data, x.type, {rows, x.shape.back()}};
        Tensor output{nullptr, x.type, {rows, channels}};
        output.data =
            lease.scratch(dense_scratch, static_cast<size_t>(rows * channels) * distile_dtype_size(output.dtype()));
        std::vector<Tensor> inputs{input, filter};
        if (bias) {
            inputs.push_back(*bias);
        }
        node_.run(call, inputs, output);
        const distile_dtype type = result.dtype;
        result = distile_tokens_make(output.data, result.batch, result.width, number(channels, "channels"));
        result.dtype = type;
        return result;
    }

private:
    DenseNode node_;
    bool transposed_;
};

std::unique_ptr<Kernel> make(const Setup &setup) {
    const Shape filter = filter_shape(setup.node);
    const bool transposed = setup.node.integer("transB", 0) != 0;
    if (filter.size() != 2) {
        fail("the weights of a linear layer have " + std::to_string(filter.size()) + " dimensions instead of 2");
    }
    distile_linear linear{};
    linear.in_channels = number(filter[transposed ? 1 : 0], "the number of channels");
    linear.out_channels = number(filter[transposed ? 0 : 1], "the number of channels");
    linear.epilogue = bindings::activation_of(setup.node.text("activation", "none")).function;
    linear.residual = setup.node.has_input(input_residual) ? 1 : 0;
    const std::string words = "a linear layer of " + std::to_string(linear.in_channels) + " to " +
                              std::to_string(linear.out_channels) + " channels";
    return std::make_unique<WeightedKernel>(
        setup,
        WeightedKernel::Description{bindings::OperatorKey(setup.device, {setup.type, setup.output_type}, linear), words,
                                    transposed ? DISTILE_OI : DISTILE_IO, ImageLayout::tokens, linear.out_channels},
        [&](const Quantization *quantization) -> std::unique_ptr<Dense> {
            if (quantization) {
                const distile_conv2d conv = {linear.in_channels, linear.out_channels, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1,
                                             linear.epilogue,    linear.residual};
                return std::make_unique<DenseQuantized>(setup, DISTILE_MASKED_CONV2D, conv,
                                                        transposed ? DISTILE_OI : DISTILE_IO, ImageLayout::tokens,
                                                        *quantization);
            }
            return std::make_unique<DenseLinear>(setup, transposed);
        });
}

}  // namespace

std::vector<OperatorType> linear_types() {
    return {{"MaskedLinear", weighted_inputs(), {any_type}, make},
            {"MaskedQLinearMatMul", quantized_inputs(), {type_of_output}, make, false, true}};
}

}  // namespace distile::ort
