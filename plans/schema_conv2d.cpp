#include "operator_schema.h"

namespace distile {

namespace {

std::vector<IntegerParam> params() {
    std::vector<IntegerParam> params = filter_params();
    params.insert(params.end(),
                  {{"in_channels", 64, 1, 1 << 20}, {"out_channels", 64, 1, 1 << 20}, {"groups", 1, 1, 1 << 20}});
    return params;
}

distile_conv2d conv2d(const ParamValue &param) {
    distile_conv2d conv = filter_conv2d(param);
    conv.in_channels = param("in_channels");
    conv.out_channels = param("out_channels");
    conv.groups = param("groups");
    return conv;
}

std::string why_illegal(const distile_conv2d &conv) {
    if (conv.in_channels % conv.groups != 0 || conv.out_channels % conv.groups != 0) {
        return "the parameter \"groups\" is " + std::to_string(conv.groups) + ", which must divide both " +
               std::to_string(conv.in_channels) + " input and " + std::to_string(conv.out_channels) +
               " output channels";
    }
    return "";
}

}  // namespace

const OperatorSchema &conv2d_schema() {
    static const OperatorSchema schema = {"masked_conv2d", DISTILE_MASKED_CONV2D, "convolution",     params(), false,
                                          conv2d,          why_illegal,           conv_output_extent};
    return schema;
}

}  // namespace distile
