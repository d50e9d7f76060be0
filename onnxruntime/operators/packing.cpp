#include "onnxruntime/tensors.h"
#include <algorithm>
#include <distile/layers.h>
#include <distile/tokens.h>

namespace distile::ort {

namespace {

/** Packed tokens [tokens, C]. */
distile_tensor packed_view(const Tensor &packed) {
    distile_tensor view = distile_tokens_make(packed.data, 1, number(packed.shape[0], "the number of tokens"),
                                              number(packed.shape[1], "the number of channels"));
    view.dtype = packed.dtype();
    return view;
}

/** The active pixels of images or tokens, next to each other: [active, C]. */
class Pack : public LeasingKernel {
public:
    explicit Pack(const Setup &setup) : LeasingKernel(setup), layout_(image_layout(setup.node)) {
    }

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor x = call.input(0);
        const ImageLayout layout = layout_of(x, layout_);
        const distile_tensor input = read(lease, x, layout, x_scratch);
        distile_mask *const mask = mask_of(lease, call.input(1), layout, input.batch);
        int64_t active = 0;
        check(distile_mask_active_pixels(mask, &active), lease->context());
        const Tensor packed = call.output({active, input.channels}, x.type);
        if (active > 0) {
            const distile_tensor output = packed_view(packed);
            check(distile_pack(lease->context(), &input, mask, &output), lease->context());
        }
    }

private:
    ImageLayout layout_;
};

/** The reverse: images if the mask is one of images, or else tokens. */
class Unpack : public LeasingKernel {
public:
    explicit Unpack(const Setup &setup) : LeasingKernel(setup), layout_(image_layout(setup.node)) {
    }

    void compute(const Call &call) override {
        enum : size_t { input_packed, input_mask, input_kept };
        const Lease lease = lease_for(call);
        const Tensor packed = call.input(input_packed), bytes = call.input(input_mask);
        if (packed.shape.size() != 2) {
            fail("packed tokens have " + std::to_string(packed.shape.size()) + " dimensions instead of 2");
        }
        const ImageLayout layout = bytes.shape.size() < 3 ? ImageLayout::tokens : layout_;
        distile_mask *const mask = mask_of(lease, bytes, layout, bytes.shape[0]);
        Tensor like{nullptr, packed.type, bytes.shape};
        int64_t height = 1, width = 1;
        if (layout == ImageLayout::tokens) {
            like.shape.push_back(packed.shape[1]);
        } else {
            height = bytes.shape[bytes.shape.size() == 4 && bytes.shape[1] == 1 ? 2 : 1];
            width = bytes.shape[bytes.shape.size() == 4 && bytes.shape[1] == 1 ? 3 : 2];
        }
        const Output output(call, lease, like, layout, number(height, "a height"), number(width, "a width"),
                            number(packed.shape[1], "the number of channels"), call.optional(input_kept));
        if (packed.shape[0] > 0) {
            const distile_tensor input = packed_view(packed);
            check(distile_unpack(lease->context(), &input, mask, &output.view(), output.inactive()), lease->context());
        } else {
            clear(lease, mask, output);
        }
        output.finish(mask);
    }

private:
    /** Without packed tokens there may be no active pixel. */
    static void clear(const Lease &lease, distile_mask *mask, const Output &output) {
        int64_t active = 0;
        check(distile_mask_active_pixels(mask, &active), lease->context());
        if (active > 0) {
            fail("there are no packed tokens for " + std::to_string(active) + " active pixels");
        }
        distile_combine_args args{};
        args.input = &output.view();
        args.output = &output.view();
        args.mask = mask;
        args.inactive = output.inactive();
        check(distile_combine(lease->context(), &args), lease->context());
    }

    ImageLayout layout_;
};

/** How many active pixels precede each image, and all: [N + 1]. */
class CumulativeLengths : public LeasingKernel {
public:
    using LeasingKernel::LeasingKernel;

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor bytes = call.input(0);
        distile_mask *const mask =
            mask_of(lease, bytes, bytes.shape.size() < 3 ? ImageLayout::tokens : ImageLayout::nhwc, bytes.shape[0]);
        const int32_t *lengths = nullptr;
        check(distile_mask_cumulative_lengths(mask, &lengths), lease->context());
        const int64_t count = (bytes.shape.size() < 2 ? 1 : bytes.shape[0]) + 1;
        std::copy_n(lengths, count, static_cast<int32_t *>(call.output({count}, int32).data));
    }
};

}  // namespace

std::vector<OperatorType> packing_types() {
    return {{"MaskedPack", {{}, {boolean}}, {any_type}, make_kernel<Pack>},
            {"MaskedUnpack", {{}, {boolean}, {any_type, optional}}, {any_type}, make_kernel<Unpack>},
            {"MaskCumulativeLengths", {{boolean}}, {int32}, make_kernel<CumulativeLengths>, true}};
}

}  // namespace distile::ort
