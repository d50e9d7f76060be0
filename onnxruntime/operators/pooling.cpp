#include "window.h"
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
          window_(window_of(setup.node, setup.node.integers("kernel_shape", {1, 1}),
                            setup.node.integers("strides", {1, 1}))) {
    }

    void compute(const Call &call) override {
        const Lease lease(*sessions_, call, device_ == DISTILE_CPU ? -1 : call.device_number(input_x));
        const Tensor x = call.input(input_x);
        const distile_tensor input = read(lease, x, layout_, x_scratch);
        const distile_window &window = window_.window;
        const int32_t height = extent(input.height, window.kernel_h, window.stride_h, window.dilation_h,
                                      int64_t{window.pad_top} + window_.pad_bottom);
        const int32_t width = extent(input.width, window.kernel_w, window.stride_w, window.dilation_w,
                                     int64_t{window.pad_left} + window_.pad_right);
        const Output output(call, lease, x, layout_, height, width, input.channels, call.optional(input_kept));
        distile_pool_args args{};
        args.input = &input;
        args.output = &output.view();
        args.mask = mask_of(lease, call.input(input_mask), layout_);
        args.window = window;
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
    NodeWindow window_;
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
