#include "plain.h"
#include "conv2d_reference.h"
#include "token_reference.h"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

namespace distile::networks::plain {

namespace {

struct Pixel {
    int32_t n, y, x;
};

std::vector<Pixel> active_pixels(const Tensor &tensor, const Bytes &active) {
    std::vector<Pixel> pixels;
    size_t i = 0;
    for (int32_t n = 0; n < tensor.view.batch; n++) {
        for (int32_t y = 0; y < tensor.view.height; y++) {
            for (int32_t x = 0; x < tensor.view.width; x++) {
                if (active[i++] != 0) {
                    pixels.push_back({n, y, x});
                }
            }
        }
    }
    return pixels;
}

std::vector<Pixel> all_pixels(const Tensor &tensor) {
    const distile_tensor &view = tensor.view;
    return active_pixels(tensor, Bytes(size_t{1} * view.batch * view.height * view.width, 1));
}

/** Calls `body` for each pixel, in several threads. */
template<typename Body> void for_each(const std::vector<Pixel> &pixels, int32_t threads, const Body &body) {
    std::atomic<size_t> next{0};
    const auto work = [&] {
        for (size_t i = next++; i < pixels.size(); i = next++) {
            body(pixels[i]);
        }
    };
    std::vector<std::thread> others;
    for (int32_t i = 1; i < threads && pixels.size() > 1; i++) {
        others.emplace_back(work);
    }
    work();
    for (std::thread &other : others) {
        other.join();
    }
}

double activated(distile_activation activation, double value) {
    return apply_epilogue(static_cast<distile_epilogue>(activation), value);
}

/** The mean of some channels of a pixel, and the mean of squared deviations from it. */
std::pair<double, double> moments(const float *values, int32_t channels) {
    double mean = 0, variance = 0;
    for (int32_t c = 0; c < channels; c++) {
        mean += values[c] / static_cast<double>(channels);
    }
    for (int32_t c = 0; c < channels; c++) {
        variance += (values[c] - mean) * (values[c] - mean) / channels;
    }
    return {mean, variance};
}

/** The same of each image's groups of channels, over all pixels: [batch][groups]. */
std::vector<std::pair<double, double>> moments_of_groups(const Tensor &input, int32_t groups) {
    const int32_t size = input.view.channels / groups;
    const double count = double{1} * input.view.height * input.view.width * size;
    std::vector<std::pair<double, double>> found(size_t{1} * input.view.batch * groups);
    const std::vector<Pixel> pixels = all_pixels(input);
    for (const bool has_mean : {false, true}) {
        for (const Pixel &p : pixels) {
            const float *values = input.at(p.n, p.y, p.x);
            for (int32_t c = 0; c < input.view.channels; c++) {
                auto &[mean, variance] = found[size_t{1} * p.n * groups + c / size];
                (has_mean ? variance : mean) +=
                    has_mean ? (values[c] - mean) * (values[c] - mean) / count : values[c] / count;
            }
        }
    }
    return found;
}

}  // namespace

distile_weights_source Drawn::source() const {
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OIHW;
    source.bias = bias.empty() ? nullptr : bias.data();
    return source;
}

Drawn draw_weights(const Layer &layer) {
    const distile_conv2d &conv = layer.op.conv;
    Drawn drawn{std::vector<float>(filter_size(conv)), std::vector<float>(layer.has_bias ? conv.out_channels : 0)};
    const auto inputs = static_cast<float>(drawn.filter.size()) / static_cast<float>(conv.out_channels);
    draw(layer.seed, layer.gain * std::sqrt(2 / inputs), drawn.filter.data(), drawn.filter.size());
    draw(~layer.seed, .02F, drawn.bias.data(), drawn.bias.size());
    for (float &value : drawn.bias) {
        value += layer.bias;
    }
    return drawn;
}

void run(const Layer &layer, const Tensor &input, const Tensor &output, const Bytes &active, const Tensor *residual,
         int32_t threads) {
    const std::vector<Pixel> pixels = active_pixels(output, active);
    if (pixels.empty()) {
        return;
    }
    const distile_operator_kind kind = layer.op.kind == DISTILE_MASKED_LINEAR ? DISTILE_MASKED_CONV2D : layer.op.kind;
    const Conv2dReference loops(layer.op.conv, draw_weights(layer).source(), kind);
    for_each(pixels, threads, [&](const Pixel &p) {
        std::vector<double> sums;
        loops.sums(input.view, residual ? &residual->view : nullptr, p.n, p.y, p.x, sums);
        std::transform(sums.begin(), sums.end(), output.at(p.n, p.y, p.x),
                       [&](double sum) { return static_cast<float>(apply_epilogue(layer.op.conv.epilogue, sum)); });
    });
}

void attend(const Layer &layer, const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &output,
            const Bytes &active, const Bytes *keys, int32_t threads) {
    const TokenOperator op = token_operator_of(DISTILE_MASKED_ATTENTION, &layer.op.attention);
    const TokenArgs args{&query.view, &key.view, &value.view, keys ? keys->data() : nullptr, 0};
    for_each(active_pixels(output, active), threads, [&](const Pixel &p) {
        const std::vector<TokenResult> row = reference_token_row(op, args, p.n, p.y, p.x);
        std::transform(row.begin(), row.end(), output.at(p.n, p.y, p.x),
                       [](const TokenResult &result) { return static_cast<float>(result.value); });
    });
}

void normalize(const Norm &norm, const Tensor &input, const Tensor &output, const Bytes &active) {
    const int32_t channels = input.view.channels, groups = std::max(norm.groups, 1), size = channels / groups;
    std::vector<std::pair<double, double>> found;
    if (norm.groups > 0 && norm.mean.empty()) {
        found = moments_of_groups(input, groups);
    }
    for (const Pixel &p : active_pixels(output, active)) {
        const float *from = input.at(p.n, p.y, p.x);
        std::vector<double> result(channels);
        const std::pair<double, double> of_pixel = moments(from, channels);
        for (int32_t c = 0; c < channels; c++) {
            const size_t group = size_t{1} * p.n * groups + c / size;
            const auto [mean, variance] = norm.groups == 0 ? of_pixel
                                          : norm.mean.empty()
                                              ? found[group]
                                              : std::pair<double, double>(norm.mean[group], norm.variance[group]);
            const double value = (from[c] - mean) / std::sqrt(variance + norm.epsilon);
            result[c] = activated(norm.activation, norm.gamma.empty() ? value : value * norm.gamma[c] + norm.beta[c]);
        }
        std::copy(result.begin(), result.end(), output.at(p.n, p.y, p.x));
    }
}

void max_pool(const Tensor &input, const Tensor &output, int32_t kernel, int32_t stride, int32_t padding) {
    for (const Pixel &p : all_pixels(output)) {
        float *to = output.at(p.n, p.y, p.x);
        std::fill_n(to, output.view.channels, -HUGE_VALF);
        for (int32_t y = p.y * stride - padding; y < p.y * stride - padding + kernel; y++) {
            for (int32_t x = p.x * stride - padding; x < p.x * stride - padding + kernel; x++) {
                if (y >= 0 && y < input.view.height && x >= 0 && x < input.view.width) {
                    // A NaN stays, because no value is above it.
                    std::transform(to, to + output.view.channels, input.at(p.n, y, x), to, [](float a, float b) {
                        return b <= a ? a : std::isnan(a) ? a : b;
                    });
                }
            }
        }
    }
}

void mean_of_pixels(const Tensor &input, const Tensor &output) {
    const double pixels = double{1} * input.view.height * input.view.width;
    const int32_t channels = input.view.channels;
    std::vector<double> sums(size_t{1} * input.view.batch * channels);
    for (const Pixel &p : all_pixels(input)) {
        const float *values = input.at(p.n, p.y, p.x);
        for (int32_t c = 0; c < channels; c++) {
            sums[size_t{1} * p.n * channels + c] += values[c] / pixels;
        }
    }
    std::copy(sums.begin(), sums.end(), output.at(0, 0, 0));
}

void combine(distile_combination combination, const Tensor &input, const Tensor *other, const Tensor &output,
             const Bytes &active, distile_activation activation, distile_activation other_activation) {
    const bool is_pixel = other && other->view.height == 1 && other->view.width == 1;
    for (const Pixel &p : active_pixels(output, active)) {
        const float *a = input.at(p.n, p.y, p.x);
        const float *b = other ? other->at(p.n, is_pixel ? 0 : p.y, is_pixel ? 0 : p.x) : nullptr;
        float *to = output.at(p.n, p.y, p.x);
        for (int32_t c = 0; c < output.view.channels; c++) {
            const double second = b ? activated(other_activation, b[c]) : 0;
            const double value = combination == DISTILE_MULTIPLY ? a[c] * second : a[c] + second;
            to[c] = static_cast<float>(activated(activation, value));
        }
    }
}

void upsample(const Tensor &input, const Tensor &output, const Bytes &active) {
    for (const Pixel &p : active_pixels(output, active)) {
        std::copy_n(input.at(p.n, p.y / 2, p.x / 2), output.view.channels, output.at(p.n, p.y, p.x));
    }
}

}  // namespace distile::networks::plain
