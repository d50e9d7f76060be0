#include "plans/kinds/conv_params.h"

namespace distile {

namespace depthwise_conv2d_functions {
namespace {

std::vector<IntegerParam> params() {
    std::vector<IntegerParam> params = filter_params();
    params.push_back({"channels", 64, 1, 1 << 20});
    return params;
}

/** To the runtime, which knows nothing of loops, it is a convolution with a group for each channel. */
distile_conv2d conv_of(const Operator &op) {
    distile_conv2d conv = filter_of(op);
    conv.in_channels = conv.out_channels = conv.groups = op.param("channels");
    return conv;
}

OperatorFacts facts(const Operator &op) {
    OperatorFacts facts = facts_of_conv(conv_of(op));
    facts.depthwise = true;
    return facts;
}

}  // namespace
}  // namespace depthwise_conv2d_functions

const OperatorSchema &depthwise_conv2d_schema() {
    using namespace depthwise_conv2d_functions;
    static const OperatorSchema schema = {
        "masked_depthwise_conv2d",
        DISTILE_MASKED_CONV2D,
        "depthwise convolution",
        params(),
        {"height", "width"},
        [](const Operator &) { return std::string(); },
        [](const Operator &op) {
            return Channels{op.param("channels"), op.param("channels")};
        },
        [](const Operator &op) { return std::shared_ptr<const void>(std::make_shared<distile_conv2d>(conv_of(op))); },
        [](const Operator &op) { return c_struct_of(op, conv_of(op)); },
        facts,
        [](const Operator &op) {
            return Convolution{DISTILE_MASKED_CONV2D, conv_of(op)};
        },
        [](const Operator &op) { return describe_convolution(op, conv_of(op)); },
        {}};
    return schema;
}

}  // namespace distile
