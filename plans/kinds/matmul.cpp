#include "plans/kinds/token_params.h"

namespace distile {

namespace matmul_functions {
namespace {

/** The channels of scores, for the typical number of keys. */
Channels channels_of_scores(const Operator &op) {
    return {channels_of_heads(op), op.typical_keys};
}

Channels channels_of_values(const Operator &op) {
    return {op.typical_keys, channels_of_heads(op)};
}

template<distile_product product> std::shared_ptr<const void> op_struct(const Operator &op) {
    return std::make_shared<distile_matmul>(distile_matmul{op.param("heads"), op.param("head_dim"), product,
                                                           op.is_set("softmax") ? 1 : 0,
                                                           op.is_set("packed_columns") ? 1 : 0});
}

template<distile_product product> CStruct c_struct(const Operator &op) {
    return {"distile_matmul",
            {{"heads", std::to_string(op.param("heads"))},
             {"head_dim", std::to_string(op.param("head_dim"))},
             {"product", product == DISTILE_SCORES ? "DISTILE_SCORES" : "DISTILE_VALUES"},
             {"softmax", op.is_set("softmax") ? "1" : "0"},
             {"packed_columns", op.is_set("packed_columns") ? "1" : "0"}}};
}

std::string describe(const Operator &op) {
    return describe_heads(op) + (op.is_set("softmax") ? ", softmax" : "") +
           (op.is_set("packed_columns") ? ", packed columns" : "");
}

std::vector<Operand> operands_of_scores(const Operator &op) {
    return {{"DISTILE_ROLE_INPUT", &op.dtype(), channels_of_heads(op)},
            {"DISTILE_ROLE_KEY", &op.dtype(), channels_of_heads(op)},
            {"DISTILE_ROLE_OUTPUT", &op.dtype(), 0}};
}

std::vector<Operand> operands_of_values(const Operator &op) {
    return {{"DISTILE_ROLE_INPUT", &op.dtype(), 0},
            {"DISTILE_ROLE_VALUE", &op.dtype(), channels_of_heads(op)},
            {"DISTILE_ROLE_OUTPUT", &op.dtype(), channels_of_heads(op)}};
}

}  // namespace
}  // namespace matmul_functions

const OperatorSchema &scores_schema() {
    using namespace matmul_functions;
    static const OperatorSchema schema = {"masked_scores",
                                          DISTILE_MASKED_MATMUL,
                                          "scores of attention",
                                          head_params(),
                                          {"tokens"},
                                          why_heads_illegal,
                                          channels_of_scores,
                                          op_struct<DISTILE_SCORES>,
                                          c_struct<DISTILE_SCORES>,
                                          [](const Operator &op) { return facts_of_heads(op, TokenProduct::Scores); },
                                          nullptr,
                                          describe,
                                          {"softmax", "packed_columns"},
                                          operands_of_scores};
    return schema;
}

const OperatorSchema &values_schema() {
    using namespace matmul_functions;
    static const OperatorSchema schema = {"masked_values",
                                          DISTILE_MASKED_MATMUL,
                                          "values of attention",
                                          head_params(),
                                          {"tokens"},
                                          why_heads_illegal,
                                          channels_of_values,
                                          op_struct<DISTILE_VALUES>,
                                          c_struct<DISTILE_VALUES>,
                                          [](const Operator &op) { return facts_of_heads(op, TokenProduct::Values); },
                                          nullptr,
                                          describe,
                                          {"packed_columns"},
                                          operands_of_values};
    return schema;
}

}  // namespace distile
