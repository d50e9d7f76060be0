#include "conv2d_reference.h"
#include <algorithm>
#include <cmath>

namespace distile {

namespace {

int32_t output_extent(distile_operator_kind kind, int32_t input, int32_t pads, int32_t kernel, int32_t stride,
                      int32_t dilation) {
    if (kind == DISTILE_MASKED_CONV_TRANSPOSE2D) {
        return std::max((input - 1) * stride + dilation * (kernel - 1) + 1 - pads, 0);
    }
    if (kind == DISTILE_MASKED_UPSAMPLE_CONV2D) {
        return output_extent(DISTILE_MASKED_CONV2D, input * stride, pads, kernel, 1, dilation);
    }
    int32_t pixels = 0;
    while (pixels * stride + dilation * (kernel - 1) < input + pads) {
        pixels++;
    }
    return pixels;
}

/** The input that a position of the kernel multiplies for an output along an axis; -1 for a zero. */
int32_t input_at(distile_operator_kind kind, int32_t inputs, int32_t output, int32_t position, int32_t stride,
                 int32_t pad, int32_t dilation) {
    if (kind == DISTILE_MASKED_CONV_TRANSPOSE2D) {
        for (int32_t input = 0; input < inputs; input++) {
            if (input * stride - pad + position * dilation == output) {
                return input;
            }
        }
        return -1;
    }
    const bool upsampled = kind == DISTILE_MASKED_UPSAMPLE_CONV2D;
    const int32_t input = output * (upsampled ? 1 : stride) - pad + position * dilation;
    const int32_t repeated = upsampled ? stride : 1;
    return input >= 0 && input < inputs * repeated ? input / repeated : -1;
}

const float *pixel_of(const distile_tensor &tensor, int32_t n, int32_t y, int32_t x) {
    return static_cast<const float *>(tensor.data) + n * tensor.stride_n + y * tensor.stride_h + x * tensor.stride_w;
}

}  // namespace

double apply_epilogue(distile_epilogue epilogue, double value) {
    switch (epilogue) {
    case DISTILE_EPILOGUE_NONE:
        return value;
    case DISTILE_EPILOGUE_RELU:
        return std::max(value, 0.0);
    case DISTILE_EPILOGUE_RELU6:
        return std::min(std::max(value, 0.0), 6.0);
    case DISTILE_EPILOGUE_SILU:
        return value / (1 + std::exp(-value));
    case DISTILE_EPILOGUE_GELU:
        return value * 0.5 * std::erfc(-value / std::sqrt(2.0));
    }
    return value;
}

int32_t reference_output_height(const distile_conv2d &conv, int32_t input_height, distile_operator_kind kind) {
    return output_extent(kind, input_height, conv.pad_top + conv.pad_bottom, conv.kernel_h, conv.stride_h,
                         conv.dilation_h);
}

int32_t reference_output_width(const distile_conv2d &conv, int32_t input_width, distile_operator_kind kind) {
    return output_extent(kind, input_width, conv.pad_left + conv.pad_right, conv.kernel_w, conv.stride_w,
                         conv.dilation_w);
}

size_t filter_size(const distile_conv2d &conv) {
    return static_cast<size_t>(conv.kernel_h) * conv.kernel_w * (conv.in_channels / conv.groups) * conv.out_channels;
}

Conv2dReference::Conv2dReference(const distile_conv2d &conv, const distile_weights_source &weights,
                                 distile_operator_kind kind)
    : conv_(conv), kind_(kind) {
    const size_t outputs = conv.out_channels, inputs = conv.in_channels / conv.groups;
    const size_t taps = static_cast<size_t>(conv.kernel_h) * conv.kernel_w;
    filter_.resize(filter_size(conv));
    for (size_t tap = 0; tap < taps; tap++) {
        for (size_t i = 0; i < inputs; i++) {
            for (size_t o = 0; o < outputs; o++) {
                const size_t hwio = (tap * inputs + i) * outputs + o;
                const size_t at = weights.order == DISTILE_HWIO   ? hwio
                                  : weights.order == DISTILE_OHWI ? (o * taps + tap) * inputs + i
                                  : weights.order == DISTILE_IOHW ? (i * outputs + o) * taps + tap
                                                                  : (o * inputs + i) * taps + tap;
                filter_[hwio] = static_cast<const float *>(weights.filter)[at];
            }
        }
    }
    for (size_t o = 0; o < outputs; o++) {
        const double bias = weights.bias ? weights.bias[o] : 0;
        if (!weights.bn_mean) {
            factor_.push_back(1);
            addend_.push_back(bias);
            continue;
        }
        const double factor = (weights.bn_gamma ? weights.bn_gamma[o] : 1) /
                              std::sqrt(double{weights.bn_variance[o]} + weights.bn_epsilon);
        factor_.push_back(factor);
        addend_.push_back((bias - weights.bn_mean[o]) * factor + (weights.bn_beta ? weights.bn_beta[o] : 0));
    }
}

void Conv2dReference::sums(const distile_tensor &input, const distile_tensor *residual, int32_t n, int32_t y, int32_t x,
                           std::vector<double> &sums, std::vector<double> *scales) const {
    const int32_t outputs = conv_.out_channels;
    const int32_t filter_channels = conv_.in_channels / conv_.groups, group_channels = outputs / conv_.groups;
    sums.assign(outputs, 0);
    if (scales) {
        scales->assign(outputs, 0);
    }
    for (int32_t row = 0; row < conv_.kernel_h; row++) {
        for (int32_t column = 0; column < conv_.kernel_w; column++) {
            const int32_t in_y = input_at(kind_, input.height, y, row, conv_.stride_h, conv_.pad_top, conv_.dilation_h);
            const int32_t in_x =
                input_at(kind_, input.width, x, column, conv_.stride_w, conv_.pad_left, conv_.dilation_w);
            if (in_y < 0 || in_x < 0) {
                continue;
            }
            const float *values = pixel_of(input, n, in_y, in_x);
            const float *weights =
                filter_.data() + static_cast<size_t>(row * conv_.kernel_w + column) * filter_channels * outputs;
            for (int32_t i = 0; i < filter_channels; i++, weights += outputs) {
                for (int32_t group = 0; group < conv_.groups; group++) {
                    const double value = values[group * filter_channels + i];
                    const int32_t first = group * group_channels, end = first + group_channels;
                    for (int32_t o = first; o < end; o++) {
                        sums[o] += value * weights[o];
                    }
                    for (int32_t o = first; scales && o < end; o++) {
                        (*scales)[o] += std::abs(value * weights[o]);
                    }
                }
            }
        }
    }
    const float *added = residual ? pixel_of(*residual, n, y, x) : nullptr;
    for (int32_t o = 0; o < outputs; o++) {
        const double addend = addend_[o] + (added ? added[o] : 0);
        sums[o] = sums[o] * factor_[o] + addend;
        if (scales) {
            (*scales)[o] = (*scales)[o] * std::abs(factor_[o]) + std::abs(addend);
        }
    }
}

}  // namespace distile
