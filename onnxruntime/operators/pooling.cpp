#include "tensors.h"
#include <algorithm>
#include <distile/layers.h>

namespace distile::ort {

namespace {

enum PoolInput : size_t { input_x, input_mask, input_kept };
constexpr size_t x_scratch = 2;

template<distile_pooling pooling> class Pool : public Kernel {
public:
    explicit Pool(const Setup &setup)
        : sessions_(setup.sessions), device_(setup.device), layout_(image_layout(setup.node)),
          count_padding_(setup.node.integer("count_include_pad", 0) != 0),
          pads_(setup.node.integers("pads", {0, 0, 0, 0})) {
        const Shape kernel = setup.node.integers("kernel_shape", {1, 1}),
                    strides = setup.node.integers("strides", {1, 1});
        const Shape dilations = setup.node.integers("dilations", {1, 1});
        window_.kernel_h = number(kernel[0], "the kernel's height");
        window_.kernel_w = number(kernel[1], "the kernel's width");
        window_.stride_h = number(strides[0], "a stride");
        window_.stride_w = number(strides[1], "a stride");
        window_.dilation_h = number(dilations[0], "a dilation");
        window_.dilation_w = number(dilations[1], "a dilation");
        window_.pad_top = number(pads_[0], "padding");
        window_.pad_left = number(pads_[1], "padding");
        if (std::min({window_.kernel_h, window_.kernel_w, window_.stride_h, window_.stride_w}) < 1) {
            fail("a kernel or a stride of node '" + setup.node.name() + "' is 0");
        }
    }

    void compute(const Call &call) override {
        const Lease lease(*sessions_, call, device_ == DISTILE_CPU ? -1 : call.device_number(input_x));
        const Tensor x = call.input(input_x);
        const distile_tensor input = read(lease, x, layout_, x_scratch);
        const int32_t height =
            extent(input.height, window_.kernel_h, window_.stride_h, window_.dilation_h, pads_[0] + pads_[2]);
        const int32_t width =
            extent(input.width, window_.kernel_w, window_.stride_w, window_.dilation_w, pads_[1] + pads_[3]);
        const Output output(call, lease, x, layout_, height, width, input.channels, call.optional(input_kept));
        distile_pool_args args{};
        args.input = &input;
        args.output = &output.view();
        args.mask = mask_of(lease, call.input(input_mask), layout_);
        args.window = window_;
        args.pooling = pooling;
        args.count_padding = count_padding_ ? 1 : 0;
        args.inactive = output.inactive();
        check(distile_pool(lease->context(), &args), lease->context());
        output.finish(args.mask);
    }

private:
    static int32_t extent(int64_t in, int64_t kernel, int64_t stride, int64_t dilation, int64_t pads) {
        const int64_t window = dilation * (kernel - 1) + 1;
        if (in + pads < window) {
            fail("the input is smaller than the operator's window");
        }
        return number((in + pads - window) / stride + 1, "an extent");
    }

    std::shared_ptr<Sessions> sessions_;
    distile_device device_;
    Layout layout_;
    bool count_padding_;
    Shape pads_;
    distile_window window_{};
};

template<distile_pooling pooling> std::unique_ptr<Kernel> make(const Setup &setup) {
    return std::make_unique<Pool<pooling>>(setup);
}

}  // namespace

std::vector<OperatorType> pooling_types() {
    const std::vector<Input> inputs{{}, {boolean}, {any_type, optional}};
    return {{"MaskedMaxPool", inputs, any_type, true, make<DISTILE_MAX_POOLING>},
            {"MaskedAveragePool", inputs, any_type, true, make<DISTILE_AVERAGE_POOLING>}};
}

}  // namespace distile::ort
