#include "weighted.h"
#include <atomic>
#include <distile/layers.h>

namespace distile::ort {

namespace {

/** Of all kernels, only the first that runs dense says so. */
void warn_once(const NodeView &node, const std::string &words) {
    static std::atomic<bool> warned{false};
    if (!warned.exchange(true)) {
        node.warn("distile: no PolyKernel computes " + words + " of node '" + node.name() +
                  "', so ONNX Runtime's dense operator runs instead, and the mask after it. 'python -m distile.onnx "
                  "convert --build' compiles the PolyKernels of a model. This warning appears once.");
    }
}

}  // namespace

std::vector<Input> weighted_inputs() {
    return {{},
            {any_type, required, true},
            {boolean},
            {float32, optional, true},
            {any_type, optional},
            {any_type, optional}};
}

Shape filter_shape(const NodeView &node) {
    const auto filter = node.constant(input_filter);
    if (!filter) {
        fail("the weights of node '" + node.name() + "' are not an initializer");
    }
    return filter->shape;
}

const distile_polykernel *find_or_load(const bindings::OperatorKey &key) {
    const distile_polykernel *found = bindings::find_polykernel(key);
    if (!found) {
        bindings::load_cached_polykernels();
        found = bindings::find_polykernel(key);
    }
    return found;
}

WeightedKernel::WeightedKernel(const Setup &setup, const Description &what)
    : LeasingKernel(setup), order_(what.order), layout_(what.layout), epilogue_(what.epilogue),
      filter_(setup.node.constant(input_filter).value()), bias_(setup.node.constant(input_bias)),
      polykernel_(find_or_load(what.key)) {
    if (polykernel_) {
        return;
    }
    if (setup.device != DISTILE_CPU) {
        fail("no PolyKernel for NVIDIA GPUs computes " + what.words + " of node '" + setup.node.name() +
             "': leave the node as it was");
    }
    warn_once(setup.node, what.words);
}

distile_weights *WeightedKernel::weights(const Lease &lease) {
    std::call_once(packed_, [&] {
        distile_weights_source source{};
        source.filter = filter_.data;
        source.dtype = filter_.dtype();
        source.order = order_;
        if (bias_) {
            if (bias_->elements() != polykernel_->operands[polykernel_->num_operands - 1].channels) {
                fail("the bias does not have one element for each output channel");
            }
            source.bias = static_cast<const float *>(bias_->data);
        }
        distile_weights *packed = nullptr;
        check(distile_weights_pack(lease->kernel(*polykernel_), &source, &packed), lease->context());
        weights_.reset(packed);
    });
    return weights_.get();
}

void WeightedKernel::compute(const Call &call) {
    const Lease lease = lease_for(call);
    if (polykernel_) {
        run_masked(call, lease);
    } else {
        run_dense(call, lease);
    }
}

void WeightedKernel::run_masked(const Call &call, const Lease &lease) {
    const Tensor x = call.input(input_x);
    distile_kernel *kernel = lease->kernel(*polykernel_);
    const distile_tensor input = read(lease, x, layout_, x_scratch);
    int32_t height = 0, width = 0;
    check(distile_kernel_output_shape(kernel, input.height, input.width, &height, &width), lease->context());
    if (height == 0 || width == 0) {
        fail("the input is smaller than the operator's window");
    }
    const Output output(call, lease, x, layout_, height, width,
                        polykernel_->operands[polykernel_->num_operands - 1].channels, call.optional(input_kept));
    distile_tensor residual{};
    distile_run_args args{};
    if (const auto given = call.optional(input_residual)) {
        residual = read(lease, *given, layout_, other_scratch);
        args.residual = &residual;
    }
    args.input = &input;
    args.output = &output.view();
    args.weights = weights(lease);
    args.mask = mask_of(lease, call.input(input_mask), layout_);
    args.inactive = output.inactive();
    check(distile_run(kernel, &args), lease->context());
    output.finish(args.mask);
}

void WeightedKernel::run_dense(const Call &call, const Lease &lease) const {
    const Tensor x = call.input(input_x);
    const distile_tensor result = dense_->run(call, lease, x, filter_, bias_);
    const Output output(call, lease, x, layout_, result.height, result.width, result.channels,
                        call.optional(input_kept));
    distile_tensor residual{};
    distile_combine_args args{};
    if (const auto given = call.optional(input_residual)) {
        residual = read(lease, *given, layout_, other_scratch);
        args.other = &residual;
        args.combination = DISTILE_ADD;
    }
    args.input = &result;
    args.output = &output.view();
    args.mask = mask_of(lease, call.input(input_mask), layout_);
    args.activation = static_cast<distile_activation>(epilogue_);
    args.inactive = output.inactive();
    check(distile_combine(lease->context(), &args), lease->context());
    output.finish(args.mask);
}

}  // namespace distile::ort
