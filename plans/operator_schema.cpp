#include "plans/operator_schema.h"

namespace distile {

namespace {

const std::vector<const OperatorSchema *> &all_schemas() {
    static const std::vector<const OperatorSchema *> schemas = {
        &conv2d_schema(), &depthwise_conv2d_schema(), &conv_transpose2d_schema(), &upsample_conv2d_schema(),
        &linear_schema(), &attention_schema(),        &scores_schema(),           &values_schema()};
    return schemas;
}

}  // namespace

const OperatorSchema *find_schema(const std::string &generator) {
    for (const OperatorSchema *schema : all_schemas()) {
        if (generator == schema->generator) {
            return schema;
        }
    }
    return nullptr;
}

std::string known_generators() {
    std::string names;
    for (const OperatorSchema *schema : all_schemas()) {
        names.append(names.empty() ? "\"" : ", \"").append(schema->generator).append("\"");
    }
    return names;
}

OperatorFacts facts_of(const Operator &op) {
    OperatorFacts facts = op.schema().facts(op);
    facts.bytes_per_element = facts.bytes_per_input = op.dtype().bytes;
    facts.bytes_per_weight = op.is_quantized() ? facts.bytes_per_weight : op.weights_dtype().bytes;
    facts.nonzeros = 1 - op.typical_zeros;
    return facts;
}

}  // namespace distile
