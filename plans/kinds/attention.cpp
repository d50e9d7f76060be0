#include "facts/kind_names.h"
#include "plans/kinds/token_params.h"

namespace distile {

namespace attention_functions {
namespace {

Channels channels(const Operator &op) {
    return {channels_of_heads(op), channels_of_heads(op)};
}

std::shared_ptr<const void> op_struct(const Operator &op) {
    return std::make_shared<distile_attention>(
        distile_attention{op.param("heads"), op.param("head_dim"), op.is_set("causal") ? 1 : 0});
}

CStruct c_struct(const Operator &op) {
    return {"distile_attention",
            {{"heads", std::to_string(op.param("heads"))},
             {"head_dim", std::to_string(op.param("head_dim"))},
             {"causal", op.is_set("causal") ? "1" : "0"}}};
}

std::string describe(const Operator &op) {
    return describe_heads(op) + (op.is_set("causal") ? ", causal" : "");
}

std::vector<Operand> operands(const Operator &op) {
    const int channels = channels_of_heads(op);
    return {{"DISTILE_ROLE_INPUT", &op.dtype(), channels},
            {"DISTILE_ROLE_KEY", &op.dtype(), channels},
            {"DISTILE_ROLE_VALUE", &op.dtype(), channels},
            {"DISTILE_ROLE_OUTPUT", &op.dtype(), channels}};
}

}  // namespace
}  // namespace attention_functions

const OperatorSchema &attention_schema() {
    using namespace attention_functions;
    static const OperatorSchema schema = {
        kind_name(DISTILE_MASKED_ATTENTION),
        DISTILE_MASKED_ATTENTION,
        "attention",
        head_params(),
        {"tokens"},
        why_heads_illegal,
        channels,
        op_struct,
        c_struct,
        [](const Operator &op) { return facts_of_heads(op, TokenProduct::Attention); },
        nullptr,
        describe,
        {"causal"},
        operands};
    return schema;
}

}  // namespace distile
