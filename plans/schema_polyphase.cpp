#include "operator_schema.h"
#include "polyphase.h"

namespace distile {

namespace {

std::vector<IntegerParam> transposed_params() {
    std::vector<IntegerParam> params = filter_params();
    params.insert(params.end(), {{"in_channels", 64, 1, 1 << 20},
                                 {"out_channels", 64, 1, 1 << 20},
                                 {"output_padding_h", 0, 0, 1023},
                                 {"output_padding_w", 0, 0, 1023}});
    return params;
}

/** Those of a convolution with scales in place of its strides. */
std::vector<IntegerParam> upsampled_params() {
    std::vector<IntegerParam> params = filter_params();
    const auto is_stride = [](const IntegerParam &param) {
        return std::string(param.name) == "stride_h" || std::string(param.name) == "stride_w";
    };
    params.erase(std::remove_if(params.begin(), params.end(), is_stride), params.end());
    params.insert(params.end(), {{"in_channels", 64, 1, 1 << 20},
                                 {"out_channels", 64, 1, 1 << 20},
                                 {"scale_h", 2, 1, 1024},
                                 {"scale_w", 2, 1, 1024}});
    return params;
}

distile_conv2d transposed(const ParamValue &param) {
    distile_conv2d conv = filter_conv2d(param);
    conv.in_channels = param("in_channels");
    conv.out_channels = param("out_channels");
    conv.pad_bottom -= param("output_padding_h");
    conv.pad_right -= param("output_padding_w");
    return conv;
}

distile_conv2d upsampled(const ParamValue &param) {
    distile_conv2d conv = filter_conv2d([&](const char *name) {
        const std::string wanted = name;
        return param(wanted == "stride_h" ? "scale_h" : wanted == "stride_w" ? "scale_w" : name);
    });
    conv.in_channels = param("in_channels");
    conv.out_channels = param("out_channels");
    return conv;
}

std::string why_illegal_transposed(const distile_conv2d &conv) {
    // As PyTorch has it, but for paddings that exceed the output padding anyway.
    const bool legal = conv.pad_bottom > -std::max(conv.stride_h, conv.dilation_h) &&
                       conv.pad_right > -std::max(conv.stride_w, conv.dilation_w);
    return legal ? "" : "the output padding must be less than the stride or the dilation";
}

std::string why_illegal_upsampled(const distile_conv2d &) {
    return "";
}

template<bool nearest> int output_extent(int input, int pads, int kernel, int stride, int dilation) {
    const int64_t extent = PolyphaseAxis{kernel, stride, pads, 0, dilation, nearest}.output_extent(input);
    return static_cast<int>(std::max<int64_t>(extent, 0));
}

}  // namespace

const OperatorSchema &conv_transpose2d_schema() {
    static const OperatorSchema schema = {"masked_conv_transpose2d",
                                          DISTILE_MASKED_CONV_TRANSPOSE2D,
                                          "transposed convolution",
                                          transposed_params(),
                                          false,
                                          transposed,
                                          why_illegal_transposed,
                                          output_extent<false>};
    return schema;
}

const OperatorSchema &upsample_conv2d_schema() {
    static const OperatorSchema schema = {"masked_upsample_conv2d",
                                          DISTILE_MASKED_UPSAMPLE_CONV2D,
                                          "convolution after nearest upsampling",
                                          upsampled_params(),
                                          false,
                                          upsampled,
                                          why_illegal_upsampled,
                                          output_extent<true>};
    return schema;
}

}  // namespace distile
