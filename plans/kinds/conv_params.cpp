#include "plans/kinds/conv_params.h"
#include <sstream>

namespace distile {

std::vector<IntegerParam> filter_params() {
    return {{"kernel_h", 3, 1, 1024},    {"kernel_w", 3, 1, 1024},     {"stride_h", 1, 1, 1024},
            {"stride_w", 1, 1, 1024},    {"pad_top", 1, 0, 1 << 16},   {"pad_bottom", 1, 0, 1 << 16},
            {"pad_left", 1, 0, 1 << 16}, {"pad_right", 1, 0, 1 << 16}, {"dilation_h", 1, 1, 1024},
            {"dilation_w", 1, 1, 1024}};
}

distile_conv2d filter_of(const Operator &op, const char *stride_h, const char *stride_w) {
    distile_conv2d conv{};
    conv.groups = 1;
    conv.kernel_h = op.param("kernel_h");
    conv.kernel_w = op.param("kernel_w");
    conv.stride_h = op.param(stride_h);
    conv.stride_w = op.param(stride_w);
    conv.pad_top = op.param("pad_top");
    conv.pad_bottom = op.param("pad_bottom");
    conv.pad_left = op.param("pad_left");
    conv.pad_right = op.param("pad_right");
    conv.dilation_h = op.param("dilation_h");
    conv.dilation_w = op.param("dilation_w");
    conv.residual = op.has_residual() ? 1 : 0;
    conv.epilogue = op.epilogue_value();
    return conv;
}

std::string describe_convolution(const Operator &op, const distile_conv2d &conv, const std::string &groups,
                                 const char *stride) {
    std::ostringstream text;
    text << conv.kernel_h << "x" << conv.kernel_w << " " << op.schema().noun << ", " << conv.in_channels << " -> "
         << conv.out_channels << " channels" << groups;
    if (conv.stride_h != 1 || conv.stride_w != 1) {
        text << ", " << stride << " " << conv.stride_h << "x" << conv.stride_w;
    }
    if (conv.dilation_h != 1 || conv.dilation_w != 1) {
        text << ", dilation " << conv.dilation_h << "x" << conv.dilation_w;
    }
    text << ", padding " << conv.pad_top << "/" << conv.pad_bottom << "/" << conv.pad_left << "/" << conv.pad_right
         << " (top/bottom/left/right)";
    return text.str();
}

CStruct c_struct_of(const Operator &op, const distile_conv2d &conv) {
    const auto number = [](int value) { return std::to_string(value); };
    return {"distile_conv2d",
            {{"in_channels", number(conv.in_channels)},
             {"out_channels", number(conv.out_channels)},
             {"groups", number(conv.groups)},
             {"kernel_h", number(conv.kernel_h)},
             {"kernel_w", number(conv.kernel_w)},
             {"stride_h", number(conv.stride_h)},
             {"stride_w", number(conv.stride_w)},
             {"pad_top", number(conv.pad_top)},
             {"pad_bottom", number(conv.pad_bottom)},
             {"pad_left", number(conv.pad_left)},
             {"pad_right", number(conv.pad_right)},
             {"dilation_h", number(conv.dilation_h)},
             {"dilation_w", number(conv.dilation_w)},
             {"epilogue", op.epilogue()},
             {"residual", number(conv.residual)}}};
}

OperatorFacts facts_of_conv(const distile_conv2d &conv) {
    OperatorFacts facts;
    facts.in_channels = conv.in_channels / conv.groups;
    facts.out_channels = conv.out_channels;
    facts.groups = conv.groups;
    facts.kernel_h = conv.kernel_h;
    facts.kernel_w = conv.kernel_w;
    facts.stride_h = conv.stride_h;
    facts.stride_w = conv.stride_w;
    facts.dilation_h = conv.dilation_h;
    facts.dilation_w = conv.dilation_w;
    return facts;
}

std::string why_groups_illegal(const distile_conv2d &conv) {
    if (conv.in_channels % conv.groups == 0 && conv.out_channels % conv.groups == 0) {
        return "";
    }
    return "the parameter \"groups\" is " + std::to_string(conv.groups) + ", but must divide the " +
           std::to_string(conv.in_channels) + " input channels and the " + std::to_string(conv.out_channels) +
           " output channels";
}

}  // namespace distile
