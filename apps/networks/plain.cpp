#include "plain.h"
#include "reference/conv2d_reference.h"
#include "reference/plain_layers.h"
#include "reference/token_reference.h"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <system_error>
#include <thread>

namespace distile::networks::plain {

namespace {

struct Pixel {
    int32_t n, y, x;
};

std::vector<Pixel> active_pixels(const Tensor &tensor, const Bytes &active) {
    std::vector<Pixel> pixels;
    for_each_pixel(tensor.view, [&](size_t pixel, int32_t n, int32_t y, int32_t x) {
        if (active[pixel] != 0) {
            pixels.push_back({n, y, x});
        }
    });
    return pixels;
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
    try {
        while (others.size() + 1 < std::min<size_t>(threads, pixels.size())) {
            others.emplace_back(work);
        }
    } catch (const std::system_error &) {}  // The threads that started do the work.
    work();
    for (std::thread &other : others) {
        other.join();
    }
}

Bytes all_active(const Tensor &tensor) {
    return Bytes(size_t{1} * tensor.view.batch * tensor.view.height * tensor.view.width, 1);
}

/** Stores what is computed. */
void store(const ReferenceOutput &computed, const Tensor &output) {
    for_each_pixel(output.view, [&](size_t pixel, int32_t n, int32_t y, int32_t x) {
        if (computed.states[pixel] == PixelState::Computed) {
            std::copy_n(&computed.values[pixel * output.view.channels], output.view.channels, output.at(n, y, x));
        }
    });
}

}  // namespace

distile_weights_source Drawn::source() const {
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OIHW;
    source.bias = bias.data();
    return source;
}

Drawn draw_weights(const Layer &layer) {
    const distile_conv2d &conv = layer.op.conv;
    Drawn drawn{std::vector<float>(filter_size(conv)), std::vector<float>(conv.out_channels)};
    const auto inputs = static_cast<float>(drawn.filter.size()) / static_cast<float>(conv.out_channels);
    draw(layer.seed, layer.gain * std::sqrt(2 / inputs), drawn.filter.data(), drawn.filter.size());
    draw(~layer.seed, .02F, drawn.bias.data(), drawn.bias.size());
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
            const Bytes &active, int32_t threads) {
    const TokenOperator op = token_operator_of(DISTILE_MASKED_ATTENTION, &layer.op.attention);
    const TokenArgs args{&query.view, &key.view, &value.view, active.data(), 0};
    for_each(active_pixels(output, active), threads, [&](const Pixel &p) {
        const std::vector<TokenResult> row = reference_token_row(op, args, p.n, p.y, p.x);
        std::transform(row.begin(), row.end(), output.at(p.n, p.y, p.x),
                       [](const TokenResult &result) { return static_cast<float>(result.value); });
    });
}

void normalize(const Norm &norm, const Tensor &input, const Tensor &output, const Bytes &active) {
    const PlainNorm plain{DISTILE_LAYER_NORM, norm.gamma, norm.beta, norm.epsilon};
    store(plain_normalize(input.view, active, plain, DISTILE_KEEP), output);
}

void max_pool(const Tensor &input, const Tensor &output, int32_t kernel, int32_t stride, int32_t padding) {
    distile_pool_args args{};
    args.window = {kernel, kernel, stride, stride, 1, 1, padding, padding, DISTILE_WINDOW_CONV};
    args.pooling = DISTILE_MAX_POOLING;
    store(plain_pool(input.view, output.view, all_active(output), args), output);
}

void mean_of_pixels(const Tensor &input, const Tensor &output) {
    store(plain_global_pool(input.view, all_active(input), DISTILE_AVERAGE_POOLING), output);
}

void copy(const Tensor &input, const Tensor &output, const Bytes &active, distile_activation activation) {
    distile_combine_args args{};
    args.combination = DISTILE_COPY;
    args.activation = activation;
    store(plain_combine(input.view, nullptr, active, args), output);
}

}  // namespace distile::networks::plain
