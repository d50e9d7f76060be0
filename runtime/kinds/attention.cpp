#include "runtime/kinds/token_rows.h"

namespace distile {

namespace attention_functions {
namespace {

const distile_attention &attention_of(const void *op) {
    return *static_cast<const distile_attention *>(op);
}

std::string why_illegal(const void *op) {
    return why_heads_illegal(attention_of(op).heads, attention_of(op).head_dim);
}

ImageSize output_size(const void *, const ImageSize &input) {
    return {1, input.width};
}

int32_t one_row(const void *) {
    return 1;
}

float scale(const void *op) {
    return usual_scale(attention_of(op).head_dim);
}

constexpr TokenRows rows = {one_row, one_row, scale};

}  // namespace
}  // namespace attention_functions

const OperatorKind attention_kind = {DISTILE_MASKED_ATTENTION,
                                     attention_functions::why_illegal,
                                     attention_functions::output_size,
                                     border_of_tokens,
                                     window_of_tokens,
                                     all_tokens,
                                     nullptr,
                                     &attention_functions::rows,
                                     DISTILE_MATH_FLOAT32};

}  // namespace distile
