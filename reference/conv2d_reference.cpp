#include "reference/conv2d_reference.h"
#include "runtime/base/types.h"
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

/** What a kernel position may multiply instead of an input: nothing, or a zero of the padding, which makes NaN of
 * infinite weights. */
constexpr int32_t no_input = -1, padding = -2;

/** The input that a kernel position multiplies for an output along one axis; no_input or padding. */
int32_t input_at(distile_operator_kind kind, int32_t inputs, int32_t output, int32_t position, int32_t stride,
                 int32_t pad, int32_t dilation) {
    if (kind == DISTILE_MASKED_CONV_TRANSPOSE2D) {
        for (int32_t input = 0; input < inputs; input++) {
            if (input * stride - pad + position * dilation == output) {
                return input;
            }
        }
        return (output + pad - position * dilation) % stride == 0 ? padding : no_input;
    }
    const bool upsampled = kind == DISTILE_MASKED_UPSAMPLE_CONV2D;
    const int32_t input = output * (upsampled ? 1 : stride) - pad + position * dilation;
    const int32_t repeated = upsampled ? stride : 1;
    return input >= 0 && input < inputs * repeated ? input / repeated : padding;
}

const char *address_of(const distile_tensor &tensor, int32_t n, int32_t y, int32_t x, int32_t channel) {
    const int64_t element = n * tensor.stride_n + y * tensor.stride_h + x * tensor.stride_w + channel;
    return static_cast<const char *>(tensor.data) + element * find_type(tensor.dtype)->bytes;
}

/** The channels of a pixel as float32: in place, or converted into `memory`. */
const float *read_pixel(const distile_tensor &tensor, int32_t n, int32_t y, int32_t x, std::vector<float> &memory) {
    const char *pixel = address_of(tensor, n, y, x, 0);
    if (tensor.dtype == DISTILE_FLOAT32) {
        return reinterpret_cast<const float *>(pixel);
    }
    memory.resize(tensor.channels);
    find_type(tensor.dtype)->to_float(pixel, memory.data(), memory.size());
    return memory.data();
}

/** A sum of float32 numbers is infinite beyond their range. */
double as_float32_sum(double sum) {
    constexpr double least_rounded_to_infinity = 0x1.ffffffp127;
    return std::abs(sum) >= least_rounded_to_infinity ? std::copysign(HUGE_VAL, sum) : sum;
}

}  // namespace

distile_conv2d convolution_of(const distile_polykernel &polykernel) {
    if (polykernel.kind != DISTILE_MASKED_LINEAR) {
        return *static_cast<const distile_conv2d *>(polykernel.op);
    }
    const auto &linear = *static_cast<const distile_linear *>(polykernel.op);
    distile_conv2d conv{};
    conv.in_channels = linear.in_channels;
    conv.out_channels = linear.out_channels;
    conv.groups = conv.kernel_h = conv.kernel_w = conv.stride_h = conv.stride_w = 1;
    conv.dilation_h = conv.dilation_w = 1;
    conv.epilogue = linear.epilogue;
    conv.residual = linear.residual;
    return conv;
}

distile_dtype type_of(const distile_polykernel &polykernel) {
    return polykernel.operands[0].dtype;
}

void store_as(distile_dtype dtype, float value, void *to) {
    find_type(dtype)->from_float(&value, to, 1);
}

float load_as(distile_dtype dtype, const void *from) {
    float value = 0;
    find_type(dtype)->to_float(from, &value, 1);
    return value;
}

float round_to(distile_dtype dtype, float value) {
    alignas(float) char stored[sizeof(float)];
    store_as(dtype, value, stored);
    return load_as(dtype, stored);
}

float read_element(const distile_tensor &tensor, int32_t n, int32_t y, int32_t x, int32_t channel) {
    return load_as(tensor.dtype, address_of(tensor, n, y, x, channel));
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
                                 distile_operator_kind kind, distile_dtype dtype)
    : conv_(conv), kind_(kind), dtype_(dtype), merges_(kind == DISTILE_MASKED_UPSAMPLE_CONV2D) {
    const size_t outputs = conv.out_channels, inputs = conv.in_channels / conv.groups;
    const size_t taps = static_cast<size_t>(conv.kernel_h) * conv.kernel_w;
    const bool is_float = static_cast<int>(weights.dtype) == 0 || weights.dtype == DISTILE_FLOAT32;
    const Type &type = *find_type(is_float ? DISTILE_FLOAT32 : weights.dtype);
    std::vector<float> source(filter_size(conv));
    type.to_float(weights.filter, source.data(), source.size());
    filter_.resize(source.size());
    for (size_t o = 0; o < outputs; o++) {
        const double bias = weights.bias ? weights.bias[o] : 0;
        if (!weights.bn_mean) {
            factor_.push_back(1);
            addend_.push_back(bias);
            continue;
        }
        double factor = (weights.bn_gamma ? weights.bn_gamma[o] : 1) /
                        std::sqrt(double{weights.bn_variance[o]} + weights.bn_epsilon);
        if (dtype != DISTILE_FLOAT32) {
            // Rounded weights depend on the factor's last bit, so use float32 like the kernels.
            factor =
                (weights.bn_gamma ? weights.bn_gamma[o] : 1) / std::sqrt(weights.bn_variance[o] + weights.bn_epsilon);
        }
        factor_.push_back(factor);
        addend_.push_back((bias - weights.bn_mean[o]) * factor + (weights.bn_beta ? weights.bn_beta[o] : 0));
    }
    for (size_t tap = 0; tap < taps; tap++) {
        for (size_t i = 0; i < inputs; i++) {
            for (size_t o = 0; o < outputs; o++) {
                const size_t hwio = (tap * inputs + i) * outputs + o;
                const size_t at = weights.order == DISTILE_HWIO   ? hwio
                                  : weights.order == DISTILE_OHWI ? (o * taps + tap) * inputs + i
                                  : weights.order == DISTILE_IOHW ? (i * outputs + o) * taps + tap
                                                                  : (o * inputs + i) * taps + tap;
                // Rounded weights include the factor; others leave it to the sums, which are more precise.
                const auto folded = static_cast<float>(source[at] * factor_[o]);
                filter_[hwio] = dtype == DISTILE_FLOAT32 ? source[at] : merges_ ? folded : round_to(dtype, folded);
            }
        }
    }
    if (dtype != DISTILE_FLOAT32) {
        factor_.assign(outputs, 1);
    }
}

std::vector<Conv2dReference::Run> Conv2dReference::runs(int32_t kernel, int32_t inputs, int32_t output, int32_t stride,
                                                        int32_t pad, int32_t dilation) const {
    std::vector<Run> result;
    for (int32_t position = 0; position < kernel; position++) {
        const int32_t input = input_at(kind_, inputs, output, position, stride, pad, dilation);
        if (merges_ && !result.empty() && result.back().input == input) {
            result.back().end++;
        } else {
            result.push_back({position, position + 1, input});
        }
    }
    return result;
}

const float *Conv2dReference::weights_of(const Run &rows, const Run &columns, std::vector<float> &merged) const {
    const size_t size = static_cast<size_t>(conv_.in_channels / conv_.groups) * conv_.out_channels;
    const auto at = [&](int32_t row, int32_t column) {
        return filter_.data() + static_cast<size_t>(row * conv_.kernel_w + column) * size;
    };
    if (!merges_) {
        return at(rows.begin, columns.begin);
    }
    merged.assign(size, 0);
    for (size_t i = 0; i < size; i++) {
        double sum = 0;
        for (int32_t row = rows.begin; row < rows.end; row++) {
            for (int32_t column = columns.begin; column < columns.end; column++) {
                sum += at(row, column)[i];
            }
        }
        merged[i] = round_to(dtype_, static_cast<float>(sum));
    }
    return merged.data();
}

void Conv2dReference::sums(const distile_tensor &input, const distile_tensor *residual, int32_t n, int32_t y, int32_t x,
                           std::vector<double> &sums, std::vector<double> *scales) const {
    const int32_t outputs = conv_.out_channels;
    const int32_t filter_channels = conv_.in_channels / conv_.groups, group_channels = outputs / conv_.groups;
    sums.assign(outputs, 0);
    if (scales) {
        scales->assign(outputs, 0);
    }
    std::vector<float> merged, converted;
    const std::vector<float> zeros(input.channels);
    const std::vector<Run> columns =
        runs(conv_.kernel_w, input.width, x, conv_.stride_w, conv_.pad_left, conv_.dilation_w);
    for (const Run &row : runs(conv_.kernel_h, input.height, y, conv_.stride_h, conv_.pad_top, conv_.dilation_h)) {
        for (const Run &column : columns) {
            if (row.input == no_input || column.input == no_input) {
                continue;
            }
            const bool padded = row.input == padding || column.input == padding;
            const float *values = padded ? zeros.data() : read_pixel(input, n, row.input, column.input, converted);
            const float *weights = weights_of(row, column, merged);
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
    const float *added = residual ? read_pixel(*residual, n, y, x, converted) : nullptr;
    for (int32_t o = 0; o < outputs; o++) {
        const double addend = addend_[o] + (added ? added[o] : 0);
        sums[o] = as_float32_sum(sums[o] * factor_[o] + addend);
        if (scales) {
            (*scales)[o] = (*scales)[o] * std::abs(factor_[o]) + std::abs(addend);
        }
    }
}

}  // namespace distile
