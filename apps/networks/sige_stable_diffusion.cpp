// SIGE: the UNet of Stable Diffusion 1, on 64 x 64 latents and an edited region.
#include "inputs.h"
#include "unet.h"
#include <algorithm>

namespace distile::networks {

namespace {

/** Self-attention to all pixels, attention to the text, and a gated linear unit. Each adds to its input. Linear layers
 * of tokens are 1x1 convolutions of images. */
struct Transformer {
    Norm norm, norm1, norm2, norm3;
    Layer enter, query_key_value, attention, project1, query, key_value, project2, up, down, leave;
};

Operator strided_conv2d(int32_t channels) {
    return conv2d(channels, channels, 3, 2);
}

struct Sizes {
    int32_t size = 64, channels = 320, heads = 8, context = 768, text = 77;
    std::vector<int32_t> multiples = {1, 2, 4, 4};
};

class StableDiffusion : public UNet {
public:
    StableDiffusion(Engine &engine, const Sizes &sizes) : UNet(engine), sizes_(sizes) {
        std::vector<bool> has_attention(sizes.multiples.size(), true);
        has_attention.back() = false;
        build({4, sizes.channels, sizes.multiples, has_attention, 1e-5F, strided_conv2d});
        text_ = engine.make(1, 1, sizes.text, sizes.context);
        draw(seed(), 1, text_.at(0, 0, 0), size_t{1} * sizes.text * sizes.context);
        const Tensor latents = engine.make(1, sizes.size, sizes.size, 4), edited = engine.make_like(latents);
        const size_t values = size_t{4} * sizes.size * sizes.size;
        draw(seed(), 1, latents.at(0, 0, 0), values);
        draw(seed(), 1, edited.at(0, 0, 0), values);
        mask_ = pooled_real_mask("sige_church", sizes.size, sizes.size);
        for (size_t i = 0; i < values; i++) {
            edited.at(0, 0, 0)[i] = (mask_[i / 4] != 0 ? edited : latents).at(0, 0, 0)[i];
        }
        take_inputs(latents, edited);
    }

protected:
    void set_edit_mask(const Mask &mask) override {
        engine_.from_bytes(mask, edited(), mask_);
    }

    void add_attention(int32_t channels) override {
        Transformer &block = transformers_.emplace_back();
        const auto project = [&](int32_t from, int32_t to, bool has_bias) {
            Layer layer(conv2d(from, to, 1), seed());
            layer.has_bias = has_bias;
            return layer;
        };
        const auto add = [&](int32_t from) { return Layer(conv2d(from, channels, 1).with_residual(), seed()); };
        block.norm = group_norm(channels, DISTILE_ACTIVATION_NONE);
        for (Norm *norm : {&block.norm1, &block.norm2, &block.norm3}) {
            *norm = Norm(channels, 0, 1e-5F, seed());
        }
        block.enter = project(channels, channels, true);
        block.query_key_value = project(channels, 3 * channels, false);
        block.attention = Layer(attention(sizes_.heads, channels / sizes_.heads), 0);
        block.project1 = add(channels);
        block.query = project(channels, channels, false);
        block.key_value = Layer(linear(sizes_.context, 2 * channels), seed());
        block.key_value.has_bias = false;
        block.project2 = add(channels);
        block.up = project(channels, 8 * channels, true);
        block.down = add(4 * channels);
        block.leave = add(channels);
    }

    Tensor attended(size_t number, const Tensor &x) override {
        Transformer &block = transformers_[number];
        const int32_t channels = x.view.channels;
        const auto part = [&](const Tensor &parts, int32_t i) { return parts.part(i * channels, channels); };
        Tensor h = run(block.enter, normalize(block.norm, x));
        const Tensor parts = run(block.query_key_value, normalize(block.norm1, h));
        h = run(block.project1, attend(block.attention, part(parts, 0), part(parts, 1), part(parts, 2)), &h);
        const Tensor query = run(block.query, normalize(block.norm2, h)), text = whole(block.key_value, text_);
        h = run(block.project2, attend(block.attention, query, part(text, 0), part(text, 1)), &h);
        const Tensor wide = run(block.up, normalize(block.norm3, h));
        const Tensor gate = wide.part(4 * channels, 4 * channels);
        const Tensor gated = combine(DISTILE_MULTIPLY, wide.part(0, 4 * channels), &gate, DISTILE_ACTIVATION_NONE,
                                     DISTILE_ACTIVATION_GELU);
        h = run(block.down, gated, &h);
        return run(block.leave, h, &x);
    }

private:
    Sizes sizes_;
    Tensor text_;
    std::vector<uint8_t> mask_;
    std::vector<Transformer> transformers_;
};

}  // namespace

std::unique_ptr<Network> make_sige_stable_diffusion(Engine &engine, const Options &options) {
    Sizes sizes;
    if (options.small) {
        sizes = {16, 32, 4, 24, 7, {1, 2}};
    }
    sizes.size = options.size > 0 ? options.size : sizes.size;
    if (sizes.size > 256 || 256 % sizes.size != 0) {
        throw std::invalid_argument("Stable Diffusion takes latents of 16, 32, 64, 128 or 256 rows");
    }
    return std::make_unique<StableDiffusion>(engine, sizes);
}

}  // namespace distile::networks
