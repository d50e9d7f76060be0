#include "bench/harness/problem.h"
#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

namespace distile::bench {

namespace {

std::vector<float> random_values(size_t count, float scale, std::mt19937 &random) {
    std::uniform_real_distribution<float> value(-scale, scale);
    std::vector<float> values(count);
    std::generate(values.begin(), values.end(), [&] { return value(random); });
    return values;
}

}  // namespace

Problem::Problem(const BenchOperator &op, int32_t batch) : op_(op), batch_(batch) {
    const distile_conv2d &conv = op.conv;
    const auto store = [&](const BorderedTensor &tensor, const std::vector<float> &values) {
        tensor.set(values.data());
        return TypedTensor(tensor, op.dtype);
    };
    std::mt19937 random(1);
    const BorderedTensor plain(batch, op.height, op.width, conv.in_channels);
    const std::vector<float> values = random_values(plain.memory().size(), 1.0f, random);
    plain_ = store(plain, values);
    bordered_ = store({batch, op.height, op.width, conv.in_channels, padding_of(conv, op.kind)}, values);
    // Sums of the products of one output channel then have a magnitude near 1.
    const size_t elements = filter_size(conv), products = elements / conv.out_channels;
    const float scale = std::sqrt(9.0f / static_cast<float>(products));
    // The type can hold the weights, so code that stores them in it rounds nothing.
    filter_ = to_floats(op.dtype, from_floats(op.dtype, random_values(elements, scale, random)).data(), elements);
    if (op.weight_zeros > 0) {
        std::bernoulli_distribution is_zero(op.weight_zeros);
        std::replace_if(
            filter_.begin(), filter_.end(), [&](float) { return is_zero(random); }, 0.0f);
    }
    bias_ = random_values(conv.out_channels, 0.5f, random);
    if (conv.residual != 0) {
        residual_ = store({batch, op.output_height(), op.output_width(), conv.out_channels},
                          random_values(output_size(), 1.0f, random));
    }
    // Weights are packed in float32 whatever the type.
    loops_ = std::make_unique<Conv2dReference>(conv, weights(), op.kind);
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

distile_tensor Problem::output(void *memory) const {
    distile_tensor output =
        distile_tensor_make(memory, batch_, op_.output_height(), op_.output_width(), op_.conv.out_channels);
    output.dtype = op_.dtype;
    return output;
}

void Problem::sum_pixel(int32_t n, int32_t y, int32_t x, std::vector<double> &sums, bool with_residual) const {
    loops_->sums(plain_->view(), with_residual ? residual() : nullptr, n, y, x, sums);
}

const std::vector<float> &Problem::reference() {
    if (reference_.empty()) {
        reference_.reserve(output_size());
        std::vector<double> sums;
        for (int32_t n = 0; n < batch_; n++) {
            for (int32_t y = 0; y < op_.output_height(); y++) {
                for (int32_t x = 0; x < op_.output_width(); x++) {
                    sum_pixel(n, y, x, sums);
                    for (const double sum : sums) {
                        reference_.push_back(static_cast<float>(apply_epilogue(op_.conv.epilogue, sum)));
                    }
                }
            }
        }
    }
    return reference_;
}

}  // namespace distile::bench
