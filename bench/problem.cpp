#include "problem.h"
#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

namespace distile::bench {

namespace {

constexpr size_t cache_line = 64;

size_t plain_size(const Operator &op, int32_t batch) {
    return static_cast<size_t>(batch) * op.height * op.width * op.conv.in_channels;
}

size_t bordered_size(const Operator &op, int32_t batch) {
    return static_cast<size_t>(batch) * (op.height + op.conv.pad_top + op.conv.pad_bottom) *
           (op.width + op.conv.pad_left + op.conv.pad_right) * op.conv.in_channels;
}

std::vector<float> random_values(size_t count, float scale, std::mt19937 &random) {
    std::uniform_real_distribution<float> value(-scale, scale);
    std::vector<float> values(count);
    std::generate(values.begin(), values.end(), [&] { return value(random); });
    return values;
}

}  // namespace

double activate(distile_epilogue epilogue, double value) {
    switch (epilogue) {
    case DISTILE_EPILOGUE_NONE:
        return value;
    case DISTILE_EPILOGUE_RELU:
        return std::max(value, 0.0);
    case DISTILE_EPILOGUE_RELU6:
        return std::clamp(value, 0.0, 6.0);
    case DISTILE_EPILOGUE_SILU:
        return value / (1 + std::exp(-value));
    }
    return value;
}

AlignedFloats::AlignedFloats(size_t count) : count_(count), memory_(count + cache_line / sizeof(float)) {
    void *begin = memory_.data();
    size_t space = memory_.size() * sizeof(float);
    data_ = static_cast<float *>(std::align(cache_line, count * sizeof(float), begin, space));
}

Problem::Problem(const Operator &op, int32_t batch)
    : op_(op), batch_(batch), plain_(plain_size(op, batch)), bordered_(bordered_size(op, batch)) {
    const distile_conv2d &conv = op.conv;
    plain_input_ = distile_tensor_make(plain_.data(), batch, op.height, op.width, conv.in_channels);
    bordered_input_ = plain_input_;
    bordered_input_.stride_h = int64_t{op.width + conv.pad_left + conv.pad_right} * conv.in_channels;
    bordered_input_.stride_n = bordered_input_.stride_h * (op.height + conv.pad_top + conv.pad_bottom);
    bordered_input_.data =
        bordered_.data() + conv.pad_top * bordered_input_.stride_h + conv.pad_left * bordered_input_.stride_w;
    bordered_input_.border_top = conv.pad_top;
    bordered_input_.border_bottom = conv.pad_bottom;
    bordered_input_.border_left = conv.pad_left;
    bordered_input_.border_right = conv.pad_right;

    std::mt19937 random(1);
    const std::vector<float> values = random_values(plain_.size(), 1.0f, random);
    std::copy(values.begin(), values.end(), plain_.data());
    const size_t row = static_cast<size_t>(op.width) * conv.in_channels;
    for (int32_t n = 0; n < batch; n++) {
        for (int32_t y = 0; y < op.height; y++) {
            std::copy_n(values.data() + (static_cast<size_t>(n) * op.height + y) * row, row,
                        static_cast<float *>(bordered_input_.data) + n * bordered_input_.stride_n +
                            y * bordered_input_.stride_h);
        }
    }
    const size_t taps = static_cast<size_t>(conv.kernel_h) * conv.kernel_w * conv.in_channels;
    // Sums of this many products then have a magnitude near 1.
    const float scale = std::sqrt(9.0f / static_cast<float>(taps));
    filter_ = random_values(taps * conv.out_channels, scale, random);
    bias_ = random_values(conv.out_channels, 0.5f, random);
}

distile_weights_source Problem::weights() const {
    distile_weights_source source{};
    source.filter = filter_.data();
    source.order = DISTILE_HWIO;
    source.bias = bias_.data();
    return source;
}

size_t Problem::output_size() const {
    return static_cast<size_t>(batch_) * op_.output_height() * op_.output_width() * op_.conv.out_channels;
}

distile_tensor Problem::output(const AlignedFloats &memory) const {
    return distile_tensor_make(memory.data(), batch_, op_.output_height(), op_.output_width(), op_.conv.out_channels);
}

void Problem::sum_pixel(int32_t n, int32_t y, int32_t x, std::vector<double> &sums) const {
    const distile_conv2d &conv = op_.conv;
    const distile_tensor &in = plain_input_;
    std::copy(bias_.begin(), bias_.end(), sums.begin());
    for (int32_t ky = 0; ky < conv.kernel_h; ky++) {
        for (int32_t kx = 0; kx < conv.kernel_w; kx++) {
            const int32_t in_y = y * conv.stride_h - conv.pad_top + ky * conv.dilation_h;
            const int32_t in_x = x * conv.stride_w - conv.pad_left + kx * conv.dilation_w;
            if (in_y < 0 || in_x < 0 || in_y >= in.height || in_x >= in.width) {
                continue;
            }
            const float *pixel =
                static_cast<const float *>(in.data) + n * in.stride_n + in_y * in.stride_h + in_x * in.stride_w;
            const float *tap =
                filter_.data() + static_cast<size_t>(ky * conv.kernel_w + kx) * conv.in_channels * conv.out_channels;
            for (int32_t c = 0; c < conv.in_channels; c++, tap += conv.out_channels) {
                const double value = pixel[c];
                for (int32_t o = 0; o < conv.out_channels; o++) {
                    sums[o] += value * tap[o];
                }
            }
        }
    }
}

const std::vector<float> &Problem::reference() {
    if (reference_.empty()) {
        reference_.reserve(output_size());
        std::vector<double> sums(op_.conv.out_channels);
        for (int32_t n = 0; n < batch_; n++) {
            for (int32_t y = 0; y < op_.output_height(); y++) {
                for (int32_t x = 0; x < op_.output_width(); x++) {
                    sum_pixel(n, y, x, sums);
                    for (const double sum : sums) {
                        reference_.push_back(static_cast<float>(activate(op_.conv.epilogue, sum)));
                    }
                }
            }
        }
    }
    return reference_;
}

}  // namespace distile::bench
