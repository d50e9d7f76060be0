#include "operator_schema.h"

namespace distile {

namespace {

std::vector<IntegerParam> params() {
    std::vector<IntegerParam> params = filter_params();
    params.push_back({"channels", 64, 1, 1 << 20});
    return params;
}

/** To the runtime, which knows nothing of loops, it is a convolution with a group for each channel. */
distile_conv2d conv2d(const ParamValue &param) {
    distile_conv2d conv = filter_conv2d(param);
    conv.in_channels = conv.out_channels = conv.groups = param("channels");
    return conv;
}

std::string why_illegal(const distile_conv2d &) {
    return "";
}

}  // namespace

const OperatorSchema &depthwise_conv2d_schema() {
    static const OperatorSchema schema = {
        "masked_depthwise_conv2d", DISTILE_MASKED_CONV2D, "depthwise convolution", params(), true, conv2d, why_illegal,
        conv_output_extent};
    return schema;
}

}  // namespace distile
