// The kinds that compute their output in phases, because it is larger than their input.
#include "facts/kind_names.h"
#include "plans/kinds/conv_params.h"
#include "runtime/kinds/polyphase.h"
#include <algorithm>

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

/** The parameters of a convolution with scales in place of its strides. */
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

distile_conv2d transposed(const Operator &op) {
    distile_conv2d conv = filter_of(op);
    conv.in_channels = op.param("in_channels");
    conv.out_channels = op.param("out_channels");
    conv.pad_bottom -= op.param("output_padding_h");
    conv.pad_right -= op.param("output_padding_w");
    return conv;
}

distile_conv2d upsampled(const Operator &op) {
    distile_conv2d conv = filter_of(op, "scale_h", "scale_w");
    conv.in_channels = op.param("in_channels");
    conv.out_channels = op.param("out_channels");
    return conv;
}

/** With the padding as the file has it. */
std::string describe_transposed(const Operator &op) {
    const int rows = op.param("output_padding_h"), columns = op.param("output_padding_w");
    distile_conv2d conv = transposed(op);
    conv.pad_bottom += rows;
    conv.pad_right += columns;
    const std::string text = describe_convolution(op, conv);
    return rows == 0 && columns == 0
               ? text
               : text + ", output padding " + std::to_string(rows) + "x" + std::to_string(columns);
}

std::string why_transposed_illegal(const Operator &op) {
    const distile_conv2d conv = transposed(op);
    // PyTorch's rule; it says nothing about paddings that exceed the output padding anyway.
    const bool legal = conv.pad_bottom > -std::max(conv.stride_h, conv.dilation_h) &&
                       conv.pad_right > -std::max(conv.stride_w, conv.dilation_w);
    return legal ? "" : "the output padding must be less than the stride or the dilation";
}

// What is the same for both, by the kind and its convolution.

template<distile_operator_kind kind, distile_conv2d (*conv_of)(const Operator &)> struct Phased {
    static Channels channels(const Operator &op) {
        return {op.param("in_channels"), op.param("out_channels")};
    }
    static std::shared_ptr<const void> op_struct(const Operator &op) {
        return std::make_shared<distile_conv2d>(conv_of(op));
    }
    /** The phases are convolutions with stride 1. */
    static OperatorFacts facts(const Operator &op) {
        const Polyphase of = polyphase_of(conv_of(op), kind == DISTILE_MASKED_UPSAMPLE_CONV2D);
        OperatorFacts facts = facts_of_conv(conv_of(op));
        facts.kernel_h = of.rows.most_taps();
        facts.kernel_w = of.columns.most_taps();
        facts.stride_h = facts.stride_w = 1;
        facts.dilation_h = of.rows.step();
        facts.dilation_w = of.columns.step();
        facts.scale_h = of.rows.stride;
        facts.scale_w = of.columns.stride;
        return facts;
    }
    static CStruct c_struct(const Operator &op) {
        return c_struct_of(op, conv_of(op));
    }
    static Convolution convolution(const Operator &op) {
        return {kind, conv_of(op)};
    }
};

}  // namespace

const OperatorSchema &conv_transpose2d_schema() {
    using Kind = Phased<DISTILE_MASKED_CONV_TRANSPOSE2D, transposed>;
    static const OperatorSchema schema = {kind_name(DISTILE_MASKED_CONV_TRANSPOSE2D),
                                          DISTILE_MASKED_CONV_TRANSPOSE2D,
                                          "transposed convolution",
                                          transposed_params(),
                                          {"height", "width"},
                                          why_transposed_illegal,
                                          Kind::channels,
                                          Kind::op_struct,
                                          Kind::c_struct,
                                          Kind::facts,
                                          Kind::convolution,
                                          describe_transposed,
                                          {}};
    return schema;
}

const OperatorSchema &upsample_conv2d_schema() {
    using Kind = Phased<DISTILE_MASKED_UPSAMPLE_CONV2D, upsampled>;
    static const OperatorSchema schema = {
        kind_name(DISTILE_MASKED_UPSAMPLE_CONV2D),
        DISTILE_MASKED_UPSAMPLE_CONV2D,
        "convolution after nearest upsampling",
        upsampled_params(),
        {"height", "width"},
        [](const Operator &) { return std::string(); },
        Kind::channels,
        Kind::op_struct,
        Kind::c_struct,
        Kind::facts,
        Kind::convolution,
        [](const Operator &op) { return describe_convolution(op, upsampled(op), "", "scale"); },
        {}};
    return schema;
}

}  // namespace distile
