#include "bindings/activation.h"
#include "tensors.h"
#include <distile/layers.h>
#include <distile/tokens.h>

namespace distile::ort {

namespace {

enum NormInput : size_t { input_x, input_mask, input_scale, input_bias, input_mean, input_variance };
constexpr size_t x_scratch = 2;

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
template<distile_norm norm> class ChannelNorm : public Kernel {
public:
    explicit ChannelNorm(const Setup &setup)
        : sessions_(setup.sessions), device_(setup.device), epsilon_(setup.node.number("epsilon", 1e-5F)) {
    }

    void compute(const Call &call) override {
        const Lease lease(*sessions_, call, device_ == DISTILE_CPU ? -1 : call.device_number(input_x));
        const Tensor x = call.input(input_x);
        const distile_tensor input = read(lease, x, Layout::tokens, x_scratch);
        const Output output(call, lease, x, Layout::tokens, 1, input.width, input.channels, std::nullopt);
        distile_normalize_args args{};
        args.input = &input;
        args.output = &output.view();
        args.mask = mask_of(lease, call.input(input_mask), Layout::tokens);
        args.gamma = vector(call, input_scale, input.channels);
        args.beta = vector(call, input_bias, input.channels);
        args.norm = norm;
        args.epsilon = epsilon_;
        args.inactive = DISTILE_ZERO;
        check(distile_normalize(lease->context(), &args), lease->context());
    }

private:
    std::shared_ptr<Sessions> sessions_;
    distile_device device_;
    float epsilon_;
};

class GroupNorm : public Kernel {
public:
    explicit GroupNorm(const Setup &setup)
        : sessions_(setup.sessions), device_(setup.device), layout_(image_layout(setup.node)),
          groups_(number(setup.node.integer("num_groups", 0), "num_groups")),
          epsilon_(setup.node.number("epsilon", 1e-5F)),
          activation_(bindings::epilogue_of(setup.node.text("activation", "none"))) {
    }

    void compute(const Call &call) override {
        const Lease lease(*sessions_, call, device_ == DISTILE_CPU ? -1 : call.device_number(input_x));
        const Tensor x = call.input(input_x);
        const distile_tensor input = read(lease, x, layout_, x_scratch);
        const Output output(call, lease, x, layout_, input.height, input.width, input.channels, std::nullopt);
        distile_group_norm_args args{};
        args.input = &input;
        args.output = &output.view();
        args.mask = mask_of(lease, call.input(input_mask), layout_);
        args.groups = groups_;
        args.mean = vector(call, input_mean, int64_t{input.batch} * groups_);
        args.variance = vector(call, input_variance, int64_t{input.batch} * groups_);
        args.gamma = vector(call, input_scale, input.channels);
        args.beta = vector(call, input_bias, input.channels);
        args.epsilon = epsilon_;
        args.activation = static_cast<distile_activation>(activation_);
        args.inactive = DISTILE_ZERO;
        check(distile_group_norm(lease->context(), &args), lease->context());
        output.finish(args.mask);
    }

private:
    std::shared_ptr<Sessions> sessions_;
    distile_device device_;
    Layout layout_;
    int32_t groups_;
    float epsilon_;
    distile_epilogue activation_;
};

template<typename Norm> std::unique_ptr<Kernel> make(const Setup &setup) {
    return std::make_unique<Norm>(setup);
}

}  // namespace

std::vector<OperatorType> norm_types() {
    const Input vector{float32, optional};
    return {{"MaskedLayerNorm", {{}, {boolean}, vector, vector}, any_type, true, make<ChannelNorm<DISTILE_LAYER_NORM>>},
            {"MaskedRMSNorm", {{}, {boolean}, vector}, any_type, true, make<ChannelNorm<DISTILE_RMS_NORM>>},
            {"MaskedGroupNorm", {{}, {boolean}, vector, vector, vector, vector}, any_type, true, make<GroupNorm>}};
}

}  // namespace distile::ort
