#include "bindings/activation.h"
#include "onnxruntime/tensors.h"
#include <distile/layers.h>

namespace distile::ort {

namespace {

bindings::Activation activation_of(const NodeView &node, const char *attribute) {
    return bindings::activation_of(node.text(attribute, "none"));
}

/** Bits of the elements of NCHW images where a mask is active, and 0 elsewhere, without transposing them. */
template<typename Bits>
void select(const Call &call, const Tensor &x, const bindings::MaskBytes &mask, const Tensor &output) {
    const int64_t channels = x.shape[1], pixels = mask.height * mask.width;
    const auto *const from = x.as<Bits>();
    auto *const to = static_cast<Bits *>(output.data);
    call.parallel_for(x.shape[0] * channels, [&](int64_t plane) {
        const uint8_t *const own = mask.bytes + (mask.of_one_image ? 0 : plane / channels * pixels);
        const Bits *const source = from + plane * pixels;
        Bits *const target = to + plane * pixels;
        for (int64_t p = 0; p < pixels; p++) {
            // Without a branch, for vectors.
            target[p] = static_cast<Bits>(source[p] & -static_cast<Bits>(own[p] != 0));
        }
    });
}

void select_pixels(const Call &call, const Tensor &x, const Tensor &mask) {
    if (x.shape.size() != 4) {
        fail("images have " + std::to_string(x.shape.size()) + " dimensions instead of 4");
    }
    const bindings::MaskBytes bytes = mask_bytes(mask, ImageLayout::nchw, x.shape[0]);
    if (Shape{bytes.batch, bytes.height, bytes.width} != Shape{x.shape[0], x.shape[2], x.shape[3]}) {
        fail("the mask does not have one element for each pixel of its images");
    }
    const Tensor output = call.output(x.shape, x.type);
    if (distile_dtype_size(x.dtype()) == sizeof(uint32_t)) {
        select<uint32_t>(call, x, bytes, output);
    } else {
        select<uint16_t>(call, x, bytes, output);
    }
}

/** Two tensors pixel by pixel, or the activation of one. */
template<distile_combination combination> class Combine : public LeasingKernel {
public:
    explicit Combine(const Setup &setup)
        : LeasingKernel(setup), layout_(image_layout(setup.node)),
          other_activation_(combination == DISTILE_COPY ? bindings::Activation{}
                                                        : activation_of(setup.node, "other_activation")),
          activation_(activation_of(setup.node, "activation")) {
    }

    void compute(const Call &call) override {
        enum : size_t { input_x, input_other };
        const size_t input_mask = combination == DISTILE_COPY ? 1 : 2, input_kept = input_mask + 1;
        const Lease lease = lease_for(call);
        const Tensor x = call.input(input_x);
        const ImageLayout layout = layout_of(x, layout_);
        const bool copies = combination == DISTILE_COPY && activation_.function == DISTILE_ACTIVATION_NONE;
        if (copies && layout == ImageLayout::nchw && lease->device() == DISTILE_CPU && !call.optional(input_kept)) {
            select_pixels(call, x, call.input(input_mask));
            return;
        }
        const distile_tensor input = read(lease, x, layout, x_scratch);
        const Output output(call, lease, x, layout, input.height, input.width, input.channels,
                            call.optional(input_kept));
        distile_tensor other{};
        distile_combine_args args{};
        if (combination != DISTILE_COPY) {
            other = read(lease, call.input(input_other), layout, other_scratch);
            args.other = &other;
            args.other_activation = other_activation_.function;
            args.other_slope = &other_activation_.slope;
        }
        args.input = &input;
        args.output = &output.view();
        args.mask = mask_of(lease, call.input(input_mask), layout, output.view().batch);
        args.combination = combination;
        args.activation = activation_.function;
        args.slope = &activation_.slope;
        args.inactive = output.inactive();
        check(distile_combine(lease->context(), &args), lease->context());
        output.finish(args.mask);
    }

private:
    ImageLayout layout_;
    bindings::Activation other_activation_, activation_;
};

/** The most tensors that one node concatenates. */
constexpr size_t most_parts = 8;

/** The channels of tensors, one after the other. Those from the third on come behind what is kept. */
class Concatenate : public LeasingKernel {
public:
    explicit Concatenate(const Setup &setup) : LeasingKernel(setup), layout_(image_layout(setup.node)) {
    }

    void compute(const Call &call) override {
        enum : size_t { input_a, input_b, input_mask, input_kept, input_more };
        const Lease lease = lease_for(call);
        const Tensor a = call.input(input_a);
        const ImageLayout layout = layout_of(a, layout_);
        std::vector<distile_tensor> parts;
        const auto add = [&](const Tensor &part) {
            parts.push_back(read(lease, part, layout, x_scratch + parts.size()));
        };
        add(a);
        add(call.input(input_b));
        for (size_t i = input_more; i < input_more + most_parts - 2; i++) {
            if (const auto part = call.optional(i)) {
                add(*part);
            }
        }
        int64_t channels = 0;
        for (const distile_tensor &part : parts) {
            channels += part.channels;
        }
        const Output output(call, lease, a, layout, parts[0].height, parts[0].width,
                            number(channels, "the number of channels"), call.optional(input_kept));
        distile_tensor place = output.view();
        distile_combine_args args{};
        args.output = &place;
        args.mask = mask_of(lease, call.input(input_mask), layout, output.view().batch);
        args.inactive = output.inactive();
        for (const distile_tensor &part : parts) {
            place.channels = part.channels;
            args.input = &part;
            check(distile_combine(lease->context(), &args), lease->context());
            place.data =
                static_cast<char *>(place.data) + static_cast<size_t>(part.channels) * distile_dtype_size(place.dtype);
        }
        output.finish(args.mask);
    }

private:
    ImageLayout layout_;
};

}  // namespace

std::vector<OperatorType> combination_types() {
    const std::vector<Input> one{{}, {boolean}, {any_type, optional}};
    const std::vector<Input> two{{}, {}, {boolean}, {any_type, optional}};
    std::vector<Input> several = two;
    several.resize(two.size() + most_parts - 2, {any_type, optional});
    return {{"MaskedAdd", two, {any_type}, make_kernel<Combine<DISTILE_ADD>>},
            {"MaskedMul", two, {any_type}, make_kernel<Combine<DISTILE_MULTIPLY>>},
            {"MaskedActivation", one, {any_type}, make_kernel<Combine<DISTILE_COPY>>},
            {"MaskedConcat", several, {any_type}, make_kernel<Concatenate>}};
}

}  // namespace distile::ort
