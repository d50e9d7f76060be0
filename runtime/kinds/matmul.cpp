#include "runtime/kinds/token_rows.h"

namespace distile {

namespace matmul_functions {
namespace {

const distile_matmul &matmul_of(const void *op) {
    return *static_cast<const distile_matmul *>(op);
}

bool makes_scores(const void *op) {
    return matmul_of(op).product == DISTILE_SCORES;
}

std::string why_illegal(const void *op) {
    const distile_matmul &matmul = matmul_of(op);
    if (matmul.product != DISTILE_SCORES && matmul.product != DISTILE_VALUES) {
        return "its product is " + std::to_string(matmul.product) + ", neither scores nor values";
    }
    return why_heads_illegal(matmul.heads, matmul.head_dim);
}

int32_t input_rows(const void *op) {
    return makes_scores(op) ? 1 : matmul_of(op).heads;
}

int32_t output_rows(const void *op) {
    return makes_scores(op) ? matmul_of(op).heads : 1;
}

ImageSize output_size(const void *op, const ImageSize &input) {
    return {output_rows(op), input.width};
}

float scale(const void *op) {
    return makes_scores(op) ? usual_scale(matmul_of(op).head_dim) : 0;
}

constexpr TokenRows rows = {input_rows, output_rows, scale};

}  // namespace
}  // namespace matmul_functions

const OperatorKind matmul_kind = {DISTILE_MASKED_MATMUL,
                                  matmul_functions::why_illegal,
                                  matmul_functions::output_size,
                                  border_of_tokens,
                                  window_of_tokens,
                                  all_tokens,
                                  nullptr,
                                  &matmul_functions::rows,
                                  DISTILE_MATH_FLOAT32};

}  // namespace distile
