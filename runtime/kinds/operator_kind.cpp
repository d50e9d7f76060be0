#include "runtime/kinds/operator_kind.h"

namespace distile {

namespace {

const OperatorKind *const kinds[] = {
#define DISTILE_ROW(number, NAME, name, parameters) &name##_kind,
    DISTILE_OPERATOR_KINDS(DISTILE_ROW)
#undef DISTILE_ROW
};

#define DISTILE_ROW(number, NAME, name, parameters)                                                                    \
    static_assert(DISTILE_MASKED_##NAME == (number), "the table has another number than polykernel.h");
DISTILE_OPERATOR_KINDS(DISTILE_ROW)
#undef DISTILE_ROW

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
