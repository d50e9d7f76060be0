#include "run.h"
#include <algorithm>

namespace distile::python {

void check_types_and_out(const WeightedCall &call, int64_t channels) {
    const ScalarType type = call.input.scalar_type();
    if ((call.residual && call.residual->scalar_type() != type) || (call.out && call.out->scalar_type() != type)) {
        fail("the residual or `out` has another type than the input: convert it");
    }
    if (!call.out) {
        return;
    }
    const auto have = call.out->sizes(), mask = call.mask.sizes();
    Ints wanted(mask.begin(), mask.end());
    wanted.insert(have.size() == 4 && wanted.size() == 3 ? wanted.begin() + 1 : wanted.end(), channels);
    if (!std::equal(wanted.begin(), wanted.end(), have.begin(), have.end())) {
        fail("`out` has another shape than the mask with " + std::to_string(channels) + " channels");
    }
}

Tensor run(Session &session, const distile_polykernel &polykernel, distile_weights_order order,
           const WeightedCall &call) {
    distile_kernel *kernel = session.kernel(polykernel);
    const distile_dtype type = polykernel.operands[0].dtype;
    const View input = view_of(call.input, type);
    const bool images = call.input.dim() == 4;
    const int32_t channels = polykernel.operands[polykernel.num_operands - 1].channels;
    int32_t height = 0, width = 0;
    check(distile_kernel_output_shape(kernel, input.view.height, input.view.width, &height, &width), session.context());
    if (height == 0 || width == 0) {
        fail("the input is smaller than the operator's window");
    }
    const Tensor output = call.out ? *call.out
                          : images ? empty_images(call.input, input.view.batch, channels, height, width)
                                   : empty(call.input, {input.view.batch, width, channels}, call.input.scalar_type());
    session.check_device(output, "the output");
    const distile_tensor output_tensor = output_view(output, type);
    View residual{};
    if (call.residual) {
        session.check_device(*call.residual, "the residual");
        residual = view_of(*call.residual, type);
    }
    const SharedWeights weights = pack_weights(session, polykernel, call.weight, call.bias, order, call.place);
    distile_run_args args{};
    args.input = &input.view;
    args.residual = call.residual ? &residual.view : nullptr;
    args.output = &output_tensor;
    args.weights = weights.get();
    args.mask = session.mask(call.mask);
    args.inactive = call.out && !call.zero ? DISTILE_KEEP : DISTILE_ZERO;
    check(distile_run(kernel, &args), session.context());
    return output;
}

}  // namespace distile::python
