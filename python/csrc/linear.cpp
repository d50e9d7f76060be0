#include "bindings/registry.h"
#include "operators.h"
#include "run.h"

namespace distile::python {

namespace {

Tensor run_linear(const WeightedCall &call, const std::string &activation) {
    if (call.input.dim() != 3 || call.weight.dim() != 2 || call.input.size(2) != call.weight.size(1)) {
        fail("the input is [N, T, in] and the weight [out, in]");
    }
    distile_linear linear{};
    linear.in_channels = static_cast<int32_t>(call.weight.size(1));
    linear.out_channels = static_cast<int32_t>(call.weight.size(0));
    linear.epilogue = epilogue_of(activation);
    linear.residual = call.residual ? 1 : 0;
    Session &session = Session::of(call.input);
    const std::optional<distile_dtype> type = type_of(call.input);
    const distile_polykernel *polykernel =
        type ? bindings::find_polykernel(bindings::OperatorKey(session.device(), *type, linear)) : nullptr;
    if (polykernel) {
        return run(session, *polykernel, DISTILE_OI, call);
    }
    check_types_and_out(call, linear.out_channels);
    return python::call("distile::_dense_linear", "", call.input, call.weight, call.bias, call.mask, call.residual,
                        activation, call.place, call.zero, given(call.out));
}

}  // namespace

Tensor linear(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
              const OptionalTensor &residual, const std::string &activation, int64_t place) {
    return run_linear({input, weight, bias, mask, residual, place, nullptr, true}, activation);
}

Tensor linear_out(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
                  const OptionalTensor &residual, const std::string &activation, int64_t place, bool zero,
                  const Tensor &out) {
    return run_linear({input, weight, bias, mask, residual, place, &out, zero}, activation);
}

}  // namespace distile::python
