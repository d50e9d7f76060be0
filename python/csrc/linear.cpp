#include "python/csrc/dense.h"
#include "python/csrc/operators.h"
#include "python/csrc/run.h"
#include "python/csrc/twins.h"
#include "python/csrc/weights.h"

namespace distile::python {

namespace {

Tensor run_linear(const WeightedCall &call, const std::string &activation);

Tensor run_in_parts(const WeightedCall &call, const std::string &activation, const Ints &result,
                    const std::vector<TokenPart> &parts) {
    const Tensor output = output_of(call, result);
    for (const TokenPart &part : parts) {
        const Tensor input = part.of(call.input), mask = part.of(call.mask), out = part.of(output);
        OptionalTensor residual;
        if (call.residual) {
            residual = part.of(*call.residual);
        }
        run_linear({input, call.weight, call.bias, mask, residual, call.place, &out, call.zero}, activation);
    }
    return output;
}

Tensor run_linear(const WeightedCall &call, const std::string &activation) {
    if (call.input.dim() != 3 || call.weight.dim() != 2) {
        fail("the input is [N, T, in] and the weight [out, in], with 3 and 2 dimensions");
    }
    if (call.input.size(2) != call.weight.size(1)) {
        fail("the weight reads " + std::to_string(call.weight.size(1)) + " channels, but the input has " +
             std::to_string(call.input.size(2)));
    }
    distile_linear linear{};
    linear.in_channels = static_cast<int32_t>(call.weight.size(1));
    linear.out_channels = static_cast<int32_t>(call.weight.size(0));
    linear.epilogue = activation_of(activation).function;
    linear.residual = call.residual ? 1 : 0;
    const Ints result{call.input.size(0), call.input.size(1), linear.out_channels};
    Session &session = Session::of(call.input);
    check_call(session, call, result);
    if (is_empty(result)) {
        return output_of(call, result);
    }
    const std::optional<bindings::OperatorTypes> types = types_of(call);
    const distile_polykernel *polykernel =
        types ? polykernel_of(bindings::OperatorKey(session.device(), *types, linear), result[0] * result[1],
                              [&call] { return keeps_two_of_four(call.weight, call.input.scalar_type(), call.place); })
              : nullptr;
    if (!polykernel) {
        const auto dense = [&] { return dense_linear(call, activation); };
        return without_polykernel("linear", dense, call.input, call.weight, call.bias, call.mask, call.residual,
                                  activation, call.place, call.zero, given(call.out));
    }
    const std::vector<TokenPart> parts = parts_of(call.input);
    return parts.size() > 1 ? run_in_parts(call, activation, result, parts)
                            : run(session, *polykernel, DISTILE_OI, call, result, activation_of(activation).slope);
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
