#include "bindings/activation.h"
#include "onnxruntime/tensors.h"
#include <distile/layers.h>
#include <distile/tokens.h>

namespace distile::ort {

namespace {

enum NormInput : size_t { input_x, input_mask, input_scale, input_bias, input_mean, input_variance };

/** A vector of float32; null if it is absent. */
const float *vector(const Call &call, size_t input, int64_t elements) {
    const auto tensor = call.optional(input);
    if (tensor && tensor->elements() != elements) {
        fail("input " + std::to_string(input) + " has " + std::to_string(tensor->elements()) + " elements instead of " +
             std::to_string(elements));
    }
    return tensor ? static_cast<const float *>(tensor->data) : nullptr;
}

/** Layer norm or RMS norm over the channels, which are innermost. */
template<distile_norm norm> class ChannelNorm : public LeasingKernel {
public:
    explicit ChannelNorm(const Setup &setup) : LeasingKernel(setup), epsilon_(setup.node.number("epsilon", 1e-5F)) {
    }

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor x = call.input(input_x);
        const distile_tensor input = read(lease, x, ImageLayout::tokens, x_scratch);
        const Output output(call, lease, x, ImageLayout::tokens, 1, input.width, input.channels, std::nullopt);
        distile_normalize_args args{};
        args.input = &input;
        args.output = &output.view();
        args.mask = mask_of(lease, call.input(input_mask), ImageLayout::tokens, input.batch);
        args.gamma = vector(call, input_scale, input.channels);
        args.beta = vector(call, input_bias, input.channels);
        args.norm = norm;
        args.epsilon = epsilon_;
        args.inactive = DISTILE_ZERO;
        check(distile_normalize(lease->context(), &args), lease->context());
    }

private:
    float epsilon_;
};

/** The attribute `num_groups`. */
int32_t groups_of(const NodeView &node) {
    return number(node.integer("num_groups", 0), "num_groups");
}

/** Group norm by statistics of each image, or batch norm: by those of each channel, the same for all images. */
template<bool batch_norm> class GroupNorm : public LeasingKernel {
public:
    explicit GroupNorm(const Setup &setup)
        : LeasingKernel(setup), layout_(image_layout(setup.node)), groups_(batch_norm ? 0 : groups_of(setup.node)),
          epsilon_(setup.node.number("epsilon", 1e-5F)),
          activation_(bindings::activation_of(setup.node.text("activation", "none"))) {
    }

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor x = call.input(input_x);
        const ImageLayout layout = layout_of(x, layout_);
        const distile_tensor input = read(lease, x, layout, x_scratch);
        const Output output(call, lease, x, layout, input.height, input.width, input.channels, std::nullopt);
        const int32_t groups = batch_norm ? input.channels : groups_;
        const int64_t statistics = int64_t{batch_norm ? 1 : input.batch} * groups;
        distile_group_norm_args args{};
        args.input = &input;
        args.output = &output.view();
        args.mask = mask_of(lease, call.input(input_mask), layout, input.batch);
        args.groups = groups;
        args.mean = vector(call, input_mean, statistics);
        args.variance = vector(call, input_variance, statistics);
        args.shared_statistics = batch_norm ? 1 : 0;
        args.gamma = vector(call, input_scale, input.channels);
        args.beta = vector(call, input_bias, input.channels);
        args.epsilon = epsilon_;
        args.activation = activation_.function;
        args.slope = &activation_.slope;
        args.inactive = DISTILE_ZERO;
        check(distile_group_norm(lease->context(), &args), lease->context());
        output.finish(args.mask);
    }

private:
    ImageLayout layout_;
    int32_t groups_;
    float epsilon_;
    bindings::Activation activation_;
};

/** The mean and the variance of each image and group, of active pixels, or without a mask of all: [N, groups]. */
class GroupStatistics : public LeasingKernel {
public:
    explicit GroupStatistics(const Setup &setup)
        : LeasingKernel(setup), layout_(image_layout(setup.node)), groups_(groups_of(setup.node)) {
    }

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor x = call.input(input_x);
        const ImageLayout layout = layout_of(x, layout_);
        const distile_tensor input = read(lease, x, layout, x_scratch);
        const auto mask = call.optional(input_mask);
        const Shape shape{input.batch, groups_};
        distile_group_statistics_args args{};
        args.input = &input;
        args.mask = mask ? mask_of(lease, *mask, layout, input.batch) : nullptr;
        args.groups = groups_;
        args.mean = static_cast<float *>(call.output(shape, float32, 0).data);
        args.variance = static_cast<float *>(call.output(shape, float32, 1).data);
        check(distile_group_statistics(lease->context(), &args), lease->context());
    }

private:
    ImageLayout layout_;
    int32_t groups_;
};

}  // namespace

std::vector<OperatorType> norm_types() {
    const Input vector{float32, optional}, statistics{float32};
    return {
        {"MaskedLayerNorm", {{}, {boolean}, vector, vector}, {any_type}, make_kernel<ChannelNorm<DISTILE_LAYER_NORM>>},
        {"MaskedRMSNorm", {{}, {boolean}, vector}, {any_type}, make_kernel<ChannelNorm<DISTILE_RMS_NORM>>},
        {"MaskedGroupNorm", {{}, {boolean}, vector, vector, vector, vector}, {any_type}, make_kernel<GroupNorm<false>>},
        {"MaskedBatchNorm",
         {{}, {boolean}, vector, vector, statistics, statistics},
         {any_type},
         make_kernel<GroupNorm<true>>},
        {"MaskedGroupStatistics", {{}, {boolean, optional}}, {float32, float32}, make_kernel<GroupStatistics>}};
}

}  // namespace distile::ort
