#include "onnxruntime/tensors.h"
#include <distile/upsample.h>

namespace distile::ort {

namespace {

enum UpsampleInput : size_t { upsample_x, upsample_mask, upsample_kept };

/** Nearest upsampling. */
class Upsample : public LeasingKernel {
public:
    explicit Upsample(const Setup &setup)
        : LeasingKernel(setup), layout_(image_layout(setup.node)), scales_(setup.node.integers("scales", {2, 2})) {
    }

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor x = call.input(upsample_x);
        const distile_tensor input = read(lease, x, layout_, x_scratch);
        const Output output(call, lease, x, layout_, number(input.height * scales_[0], "a height"),
                            number(input.width * scales_[1], "a width"), input.channels, call.optional(upsample_kept));
        distile_upsample_args args{};
        args.input = &input;
        args.output = &output.view();
        args.mask = mask_of(lease, call.input(upsample_mask), layout_, input.batch);
        args.scale_h = number(scales_[0], "a scale");
        args.scale_w = number(scales_[1], "a scale");
        args.inactive = output.inactive();
        check(distile_upsample_nearest(lease->context(), &args), lease->context());
        output.finish(args.mask);
    }

private:
    ImageLayout layout_;
    Shape scales_;
};

}  // namespace

std::vector<OperatorType> upsampling_types() {
    return {{"MaskedUpsample", {{}, {boolean}, {any_type, optional}}, {any_type}, make_kernel<Upsample>}};
}

}  // namespace distile::ort
