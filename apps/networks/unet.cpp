#include "unet.h"
#include <algorithm>
#include <cmath>

namespace distile::networks {

Norm UNet::group_norm(int32_t channels, distile_activation activation) {
    Norm norm(channels, std::min(32, channels / 4), epsilon_, seed());
    norm.activation = activation;
    return norm;
}

void UNet::add_block(Level &level, int32_t in, int32_t out) {
    ResBlock &block = level.blocks.emplace_back();
    block.norm1 = group_norm(in);
    block.norm2 = group_norm(out);
    block.conv1 = Layer(conv2d(in, out, 3), seed());
    block.conv2 = Layer(conv2d(out, out, 3).with_residual(), seed());
    block.time = Layer(linear(time2_.op.conv.out_channels, out), seed());
    block.changes_channels = in != out;
    if (block.changes_channels) {
        block.shortcut = Layer(conv2d(in, out, 1), seed());
    }
    if (level.has_attention) {
        add_attention(out);
    }
}

void UNet::build(const Shape &shape) {
    epsilon_ = shape.epsilon;
    const int32_t time = 4 * shape.channels;
    time1_ = Layer(linear(shape.channels, time).then(DISTILE_ACTIVATION_SILU), seed());
    time2_ = Layer(linear(time, time).then(DISTILE_ACTIVATION_SILU), seed());  // All that reads it begins with a silu.
    enter_ = Layer(conv2d(shape.image_channels, shape.channels, 3), seed());
    std::vector<int32_t> skips = {shape.channels};
    int32_t wide = shape.channels;
    const size_t levels = shape.multiples.size();
    for (size_t i = 0; i < levels; i++) {
        Level &level = down_.emplace_back();
        level.has_attention = shape.has_attention[i];
        level.has_change = i + 1 < levels;
        for (int block = 0; block < 2; block++) {
            add_block(level, wide, shape.channels * shape.multiples[i]);
            wide = shape.channels * shape.multiples[i];
            skips.push_back(wide);
        }
        if (level.has_change) {
            level.change = Layer(shape.down(wide), seed());
            skips.push_back(wide);
        }
    }
    add_block(middle_, wide, wide);
    add_attention(wide);
    add_block(middle_, wide, wide);
    for (size_t i = levels; i-- > 0;) {
        Level &level = up_.emplace_back();
        level.has_attention = shape.has_attention[i];
        level.has_change = i > 0;
        for (int block = 0; block < 3; block++) {
            add_block(level, wide + skips.back(), shape.channels * shape.multiples[i]);
            skips.pop_back();
            wide = shape.channels * shape.multiples[i];
        }
        if (level.has_change) {
            level.change = Layer(upsampled_conv2d(wide), seed());
        }
    }
    norm_ = group_norm(wide);
    leave_ = Layer(conv2d(wide, shape.image_channels, 3), seed());
}

Tensor UNet::embedded_time() {
    const int32_t channels = time1_.op.conv.in_channels, half = channels / 2;
    const Tensor angles = engine_.make(1, 1, 1, channels);
    for (int32_t i = 0; i < half; i++) {
        const float angle = 400 * std::exp(-9.21F * static_cast<float>(i) / static_cast<float>(half));
        angles.at(0, 0, 0)[i] = std::sin(angle);
        angles.at(0, 0, 0)[half + i] = std::cos(angle);
    }
    return whole(time2_, whole(time1_, angles));
}

Tensor UNet::run_block(ResBlock &block, const Tensor &x, const Tensor &time) {
    const Tensor h = run_shifted(block.conv1, normalize(block.norm1, x), whole(block.time, time));
    const Tensor shortcut = block.changes_channels ? run(block.shortcut, x) : x;
    return run(block.conv2, normalize(block.norm2, h), &shortcut);
}

std::vector<Tensor> UNet::graph(const Tensor &input) {
    const Tensor time = embedded_time();
    Tensor x = run(enter_, input);
    std::vector<Tensor> skips = {x};
    size_t attentions = 0;
    for (Level &level : down_) {
        for (ResBlock &block : level.blocks) {
            x = run_block(block, x, time);
            x = level.has_attention ? attended(attentions++, x) : x;
            skips.push_back(x);
        }
        if (level.has_change) {
            x = run(level.change, x);
            skips.push_back(x);
        }
    }
    x = run_block(middle_.blocks[0], x, time);
    x = attended(attentions++, x);
    x = run_block(middle_.blocks[1], x, time);
    for (Level &level : up_) {
        for (ResBlock &block : level.blocks) {
            x = run_block(block, join(x, skips.back()), time);
            skips.pop_back();
            x = level.has_attention ? attended(attentions++, x) : x;
        }
        x = level.has_change ? run(level.change, x) : x;
    }
    return {run(leave_, normalize(norm_, x))};
}

}  // namespace distile::networks
