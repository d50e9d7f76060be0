#include "python/csrc/run.h"

namespace distile::python {

namespace {

/** The sizes of a result's mask, [N, H, W] or [N, T]. */
Ints pixels_of(const Ints &result) {
    return result.size() == 4 ? Ints{result[0], result[2], result[3]} : Ints{result[0], result[1]};
}

}  // namespace

void check_call(const Session &session, const WeightedCall &call, const Ints &result) {
    const Ints pixels = pixels_of(result);
    session.check_mask(call.mask, &pixels);
    const ScalarType type = call.input.scalar_type();
    // Dense twins compute in the type of the input, and weights are no whole numbers.
    if (!type_of(call.input) && type != ScalarType::Double) {
        fail("the input has a type other than " + float_type_names() + ": convert it");
    }
    if (!type_of(call.weight) && call.weight.scalar_type() != type) {
        fail("the weight has a type other than that of the input, " + float_type_names());
    }
    if (call.bias && !have_sizes(*call.bias, {result[result.size() == 4 ? 1 : 2]})) {
        fail("the bias must have one element for each output channel");
    }
    if ((call.residual && call.residual->scalar_type() != type) || (call.out && call.out->scalar_type() != type)) {
        fail("the residual or `out` has another type than the input: convert it");
    }
    if (call.residual) {
        session.check_device(*call.residual, "the residual");
        if (!have_sizes(*call.residual, result)) {
            fail("the residual has another shape than the output, " + text_of(result));
        }
    }
    if (call.out) {
        session.check_device(*call.out, "the output");
        if (!have_sizes(*call.out, result)) {
            fail("`out` has another shape than the output, " + text_of(result));
        }
        check_written_in_place(*call.out);
    }
}

std::optional<bindings::OperatorTypes> types_of(const WeightedCall &call) {
    return types_of(call.input.scalar_type(), call.weight.scalar_type(), call.input.is_cpu());
}

std::optional<bindings::OperatorTypes> types_of(ScalarType input, ScalarType weights, bool on_cpu) {
    const std::optional<distile_dtype> type = type_of(input);
    if (!type) {
        return std::nullopt;
    }
    bindings::OperatorTypes types(*type);
    if (on_cpu && *type == DISTILE_FLOAT32 && (weights == ScalarType::BFloat16 || weights == ScalarType::Half)) {
        types.weights = *type_of(weights);
    }
    return types;
}

Tensor output_of(const WeightedCall &call, const Ints &result) {
    return call.out ? *call.out : empty_result(call.input, result);
}

Tensor run(Session &session, const distile_polykernel &polykernel, distile_weights_order order,
           const WeightedCall &call, const Ints &result, float slope) {
    distile_kernel *kernel = session.kernel(polykernel);
    const distile_dtype type = polykernel.operands[0].dtype;
    const View input = view_of(call.input, type);
    const Tensor output = output_of(call, result);
    const distile_tensor output_tensor = output_view(output, type);
    View residual{};
    if (call.residual) {
        residual = view_of(*call.residual, type);
    }
    const SharedWeights weights = pack_weights(session, polykernel, call.weight, call.bias, order, slope, call.place);
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
