#include "runtime/dispatch/quantized_operator.h"
#include "runtime/base/types.h"

namespace distile {

bool is_quantized(const distile_polykernel &polykernel) {
    const distile_operand *input = find_operand(polykernel, DISTILE_ROLE_INPUT);
    return input && is_quantized(raw(input->dtype));
}

QuantizedOperator quantized_operator(const distile_polykernel &polykernel) {
    const distile_dtype output = find_operand(polykernel, DISTILE_ROLE_OUTPUT)->dtype;
    const distile_activation epilogue = find_operator_kind(polykernel.kind)->weights->epilogue(polykernel.op);
    return {find_operand(polykernel, DISTILE_ROLE_INPUT)->dtype, output,
            is_quantized(output) && (epilogue == DISTILE_ACTIVATION_NONE || epilogue == DISTILE_ACTIVATION_RELU)};
}

std::string why_types_illegal(const distile_polykernel &polykernel) {
    const distile_operand *output = find_operand(polykernel, DISTILE_ROLE_OUTPUT),
                          *residual = find_operand(polykernel, DISTILE_ROLE_RESIDUAL);
    const bool quantized = is_quantized(polykernel),
               requantizes = find_operand(polykernel, DISTILE_ROLE_REQUANTIZATION);
    for (int32_t i = 0; i < polykernel.num_operands; i++) {
        if (!find_type(raw(polykernel.operands[i].dtype))) {
            return "an operand has the unknown data type " + std::to_string(raw(polykernel.operands[i].dtype));
        }
    }
    if (!quantized) {
        return requantizes || is_quantized(raw(output->dtype)) ? "only its output is quantized" : "";
    }
    if (!requantizes || !find_operator_kind(polykernel.kind)->weights || raw(polykernel.device) == DISTILE_OPENCL) {
        return "there is no quantized operator of its kind for its device";
    }
    if (!is_quantized(raw(output->dtype)) && raw(output->dtype) != DISTILE_FLOAT32) {
        return "the output of a quantized operator is quantized or float32";
    }
    return residual && residual->dtype != output->dtype ? "its residual has another type than its output" : "";
}

}  // namespace distile
