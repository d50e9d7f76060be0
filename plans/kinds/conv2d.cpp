#include "facts/kind_names.h"
#include "plans/kinds/conv_params.h"

namespace distile {

namespace conv2d_functions {
namespace {

std::vector<IntegerParam> params() {
    std::vector<IntegerParam> params = filter_params();
    params.insert(params.end(),
                  {{"in_channels", 64, 1, 1 << 20}, {"out_channels", 64, 1, 1 << 20}, {"groups", 1, 1, 1 << 20}});
    return params;
}

distile_conv2d conv_of(const Operator &op) {
    distile_conv2d conv = filter_of(op);
    conv.in_channels = op.param("in_channels");
    conv.out_channels = op.param("out_channels");
    conv.groups = op.param("groups");
    return conv;
}

std::string describe(const Operator &op) {
    const distile_conv2d conv = conv_of(op);
    return describe_convolution(op, conv, conv.groups == 1 ? "" : " in " + std::to_string(conv.groups) + " groups");
}

}  // namespace
}  // namespace conv2d_functions

const OperatorSchema &conv2d_schema() {
    using namespace conv2d_functions;
    static const OperatorSchema schema = {
        kind_name(DISTILE_MASKED_CONV2D),
        DISTILE_MASKED_CONV2D,
        "convolution",
        params(),
        {"height", "width"},
        [](const Operator &op) { return why_groups_illegal(conv_of(op)); },
        [](const Operator &op) {
            return Channels{op.param("in_channels"), op.param("out_channels")};
        },
        [](const Operator &op) { return std::shared_ptr<const void>(std::make_shared<distile_conv2d>(conv_of(op))); },
        [](const Operator &op) { return c_struct_of(op, conv_of(op)); },
        [](const Operator &op) { return facts_of_conv(conv_of(op)); },
        [](const Operator &op) {
            return Convolution{DISTILE_MASKED_CONV2D, conv_of(op)};
        },
        describe,
        {}};
    return schema;
}

}  // namespace distile
