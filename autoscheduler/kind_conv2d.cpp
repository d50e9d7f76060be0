#include "operator_kind.h"

namespace distile {

namespace {

std::vector<IntegerParam> params() {
    std::vector<IntegerParam> params = filter_params();
    params.insert(params.end(), {{"in_channels", 64, 1, 1 << 20}, {"out_channels", 64, 1, 1 << 20}});
    return params;
}

distile_conv2d conv2d(const ParamValue &param) {
    distile_conv2d conv = filter_conv2d(param);
    conv.in_channels = param("in_channels");
    conv.out_channels = param("out_channels");
    return conv;
}

std::string why_illegal(const distile_conv2d &) {
    return "";
}

int output_extent(int input, int pads, int kernel, int stride, int dilation) {
    const int room = input + pads - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

}  // namespace

const OperatorKind &conv2d_kind() {
    static const OperatorKind kind = {"masked_conv2d", DISTILE_MASKED_CONV2D, "convolution", params(),
                                      conv2d,          why_illegal,           output_extent};
    return kind;
}

}  // namespace distile
