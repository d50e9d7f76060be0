#include "runtime/kinds/operator_kind.h"

namespace distile {

namespace {

const OperatorKind *const kinds[] = {&conv2d_kind, &conv_transpose2d_kind, &upsample_conv2d_kind,
                                     &linear_kind, &attention_kind,        &matmul_kind};

}  // namespace

const OperatorKind *find_operator_kind(int32_t kind) {
    for (const OperatorKind *known : kinds) {
        if (known->kind == kind) {
            return known;
        }
    }
    return nullptr;
}

const distile_operand *find_operand(const distile_polykernel &polykernel, distile_role role) {
    for (int32_t i = 0; i < polykernel.num_operands; i++) {
        if (polykernel.operands[i].role == role) {
            return &polykernel.operands[i];
        }
    }
    return nullptr;
}

}  // namespace distile
