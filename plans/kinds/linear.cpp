#include "facts/kind_names.h"
#include "plans/operator_schema.h"

namespace distile {

namespace linear_functions {
namespace {

Channels channels(const Operator &op) {
    return {op.param("in_channels"), op.param("out_channels")};
}

OperatorFacts facts(const Operator &op) {
    OperatorFacts facts;
    facts.in_channels = op.in_channels();
    facts.out_channels = op.out_channels();
    return facts;
}

std::shared_ptr<const void> op_struct(const Operator &op) {
    return std::make_shared<distile_linear>(
        distile_linear{op.in_channels(), op.out_channels(), op.epilogue_value(), op.has_residual() ? 1 : 0});
}

CStruct c_struct(const Operator &op) {
    return {"distile_linear",
            {{"in_channels", std::to_string(op.in_channels())},
             {"out_channels", std::to_string(op.out_channels())},
             {"epilogue", op.epilogue()},
             {"residual", op.has_residual() ? "1" : "0"}}};
}

/** A convolution of one pixel. */
Convolution convolution(const Operator &op) {
    distile_conv2d conv{};
    conv.in_channels = op.in_channels();
    conv.out_channels = op.out_channels();
    conv.groups = conv.kernel_h = conv.kernel_w = conv.stride_h = conv.stride_w = conv.dilation_h = conv.dilation_w = 1;
    conv.epilogue = op.epilogue_value();
    conv.residual = op.has_residual() ? 1 : 0;
    return {DISTILE_MASKED_CONV2D, conv};
}

std::string describe(const Operator &op) {
    return std::string(op.schema().noun) + ", " + std::to_string(op.in_channels()) + " -> " +
           std::to_string(op.out_channels()) + " channels";
}

}  // namespace
}  // namespace linear_functions

const OperatorSchema &linear_schema() {
    using namespace linear_functions;
    static const OperatorSchema schema = {kind_name(DISTILE_MASKED_LINEAR),
                                          DISTILE_MASKED_LINEAR,
                                          "linear layer",
                                          {{"in_channels", 64, 1, 1 << 20}, {"out_channels", 64, 1, 1 << 20}},
                                          {"tokens"},
                                          [](const Operator &) { return std::string(); },
                                          channels,
                                          op_struct,
                                          c_struct,
                                          facts,
                                          convolution,
                                          describe,
                                          {}};
    return schema;
}

}  // namespace distile
