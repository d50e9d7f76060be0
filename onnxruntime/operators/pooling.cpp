#include "onnxruntime/operators/window.h"
#include <distile/layers.h>

namespace distile::ort {

namespace {

enum PoolInput : size_t { pool_x, pool_mask, pool_kept };

template<distile_pooling pooling> class Pool : public LeasingKernel {
public:
    explicit Pool(const Setup &setup)
        : LeasingKernel(setup), layout_(image_layout(setup.node)),
          count_padding_(pooling == DISTILE_AVERAGE_POOLING && setup.node.integer("count_include_pad", 0) != 0),
          window_(window_of(setup.node, kernel_of(setup.node), setup.node.integers("strides", {1, 1}))) {
    }

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor x = call.input(pool_x);
        const distile_tensor input = read(lease, x, layout_, x_scratch);
        const distile_window &window = window_.window;
        const int32_t height = extent(input.height, window.kernel_h, window.stride_h, window.dilation_h,
                                      int64_t{window.pad_top} + window_.pad_bottom);
        const int32_t width = extent(input.width, window.kernel_w, window.stride_w, window.dilation_w,
                                     int64_t{window.pad_left} + window_.pad_right);
        const Output output(call, lease, x, layout_, height, width, input.channels, call.optional(pool_kept));
        distile_pool_args args{};
        args.input = &input;
        args.output = &output.view();
        args.mask = mask_of(lease, call.input(pool_mask), layout_, input.batch);
        args.window = window;
        args.pooling = pooling;
        args.count_padding = count_padding_ ? 1 : 0;
        args.inactive = output.inactive();
        check(distile_pool(lease->context(), &args), lease->context());
        output.finish(args.mask);
    }

private:
    static Shape kernel_of(const NodeView &node) {
        if (!node.has_attribute("kernel_shape")) {
            fail("node '" + node.name() + "' has no attribute kernel_shape: the height and the width of its window");
        }
        return node.integers("kernel_shape", {1, 1});
    }
    static int32_t extent(int64_t in, int64_t kernel, int64_t stride, int64_t dilation, int64_t pads) {
        const int64_t window = dilation * (kernel - 1) + 1;
        if (in + pads < window) {
            fail("the input is smaller than the operator's window");
        }
        return number((in + pads - window) / stride + 1, "an extent");
    }

    ImageLayout layout_;
    bool count_padding_;
    NodeWindow window_;
};

/** Pools each image to one pixel: its active pixels, or without a mask all. */
template<distile_pooling pooling> class GlobalPool : public LeasingKernel {
public:
    explicit GlobalPool(const Setup &setup) : LeasingKernel(setup), layout_(image_layout(setup.node)) {
    }

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor x = call.input(pool_x);
        const distile_tensor input = read(lease, x, layout_, x_scratch);
        const Output output(call, lease, x, layout_, 1, 1, input.channels, std::nullopt);
        const auto mask = call.optional(pool_mask);
        distile_global_pool_args args{};
        args.input = &input;
        args.output = &output.view();
        args.mask = mask ? mask_of(lease, *mask, layout_, input.batch) : nullptr;
        args.pooling = pooling;
        check(distile_global_pool(lease->context(), &args), lease->context());
        output.finish(args.mask);
    }

private:
    ImageLayout layout_;
};

}  // namespace

std::vector<OperatorType> pooling_types() {
    const std::vector<Input> inputs{{}, {boolean}, {any_type, optional}};
    const std::vector<Input> global_inputs{{}, {boolean, optional}};
    return {{"MaskedMaxPool", inputs, {any_type}, make_kernel<Pool<DISTILE_MAX_POOLING>>},
            {"MaskedAveragePool", inputs, {any_type}, make_kernel<Pool<DISTILE_AVERAGE_POOLING>>},
            {"MaskedGlobalMaxPool", global_inputs, {any_type}, make_kernel<GlobalPool<DISTILE_MAX_POOLING>>},
            {"MaskedGlobalAveragePool", global_inputs, {any_type}, make_kernel<GlobalPool<DISTILE_AVERAGE_POOLING>>}};
}

}  // namespace distile::ort
