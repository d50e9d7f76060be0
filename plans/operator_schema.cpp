#include "operator_schema.h"

namespace distile {

namespace {

const std::vector<const OperatorSchema *> &all_schemas() {
    static const std::vector<const OperatorSchema *> schemas = {&conv2d_schema(), &depthwise_conv2d_schema(),
                                                                &conv_transpose2d_schema(), &upsample_conv2d_schema()};
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

std::vector<IntegerParam> filter_params() {
    return {{"kernel_h", 3, 1, 1024},    {"kernel_w", 3, 1, 1024},     {"stride_h", 1, 1, 1024},
            {"stride_w", 1, 1, 1024},    {"pad_top", 1, 0, 1 << 16},   {"pad_bottom", 1, 0, 1 << 16},
            {"pad_left", 1, 0, 1 << 16}, {"pad_right", 1, 0, 1 << 16}, {"dilation_h", 1, 1, 1024},
            {"dilation_w", 1, 1, 1024}};
}

distile_conv2d filter_conv2d(const ParamValue &param) {
    distile_conv2d conv{};
    conv.groups = 1;
    conv.kernel_h = param("kernel_h");
    conv.kernel_w = param("kernel_w");
    conv.stride_h = param("stride_h");
    conv.stride_w = param("stride_w");
    conv.pad_top = param("pad_top");
    conv.pad_bottom = param("pad_bottom");
    conv.pad_left = param("pad_left");
    conv.pad_right = param("pad_right");
    conv.dilation_h = param("dilation_h");
    conv.dilation_w = param("dilation_w");
    return conv;
}

int conv_output_extent(int input, int pads, int kernel, int stride, int dilation) {
    const int room = input + pads - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

}  // namespace distile
