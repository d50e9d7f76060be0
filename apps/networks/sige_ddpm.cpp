// SIGE: the DDPM UNet for churches of 256 x 256 pixels, on a photo and its edit. The mask is the difference of the two
// photos, dilated.
#include "inputs.h"
#include "unet.h"
#include <algorithm>
#include <vector>

namespace distile::networks {

namespace {

/** x + projection(attention(norm(x))), with one head. The edited pixels attend to all. */
struct AttentionBlock {
    Norm norm;
    Layer query_key_value, attention, projection;
};

class DDPM : public UNet {
public:
    DDPM(Engine &engine, int32_t size, int32_t channels, const std::vector<int32_t> &multiples,
         const std::vector<bool> &has_attention)
        : UNet(engine), radius_(5 * size / 256) {
        build({3, channels, multiples, has_attention, 1e-6F, down_conv2d});
        std::vector<float> noise(size_t{3} * size * size);
        draw(seed(), 1, noise.data(), noise.size());
        std::vector<Tensor> inputs;
        for (const char *name : {"sige_church_original", "sige_church_edited"}) {
            const std::vector<float> pixels = photo(size, 1, name);
            const Tensor &photo = photos_.emplace_back(engine.make(1, size, size, 3));
            std::copy(pixels.begin(), pixels.end(), photo.at(0, 0, 0));
            const Tensor &input = inputs.emplace_back(engine.make_like(photo));
            std::transform(pixels.begin(), pixels.end(), noise.begin(), input.at(0, 0, 0),
                           [](float pixel, float other) { return .8F * pixel + .6F * other; });
        }
        take_inputs(inputs[0], inputs[1]);
    }

protected:
    /** The pixels that differ by more than .01 of the range of values, dilated. */
    void set_edit_mask(const Mask &mask) override {
        engine_.mark_difference(mask, photos_[0], photos_[1], .02F, radius_);
    }

    void add_attention(int32_t channels) override {
        AttentionBlock &block = attentions_.emplace_back();
        block.norm = group_norm(channels, DISTILE_ACTIVATION_NONE);
        block.query_key_value = Layer(conv2d(channels, 3 * channels, 1), seed());
        block.attention = Layer(attention(1, channels), 0);
        block.projection = Layer(conv2d(channels, channels, 1).with_residual(), seed());
    }

    Tensor attended(size_t number, const Tensor &x) override {
        AttentionBlock &block = attentions_[number];
        const int32_t channels = x.view.channels;
        const Tensor parts = run(block.query_key_value, normalize(block.norm, x));
        return run(block.projection,
                   attend(block.attention, parts.part(0, channels), parts.part(channels, channels),
                          parts.part(2 * channels, channels)),
                   &x);
    }

private:
    int32_t radius_;
    std::vector<Tensor> photos_;
    std::vector<AttentionBlock> attentions_;
};

}  // namespace

std::unique_ptr<Network> make_sige_ddpm(Engine &engine, const Options &options) {
    const int32_t size = options.size > 0 ? options.size : options.small ? 32 : 256;
    const std::vector<int32_t> multiples =
        options.small ? std::vector<int32_t>{1, 2} : std::vector<int32_t>{1, 1, 2, 2, 4, 4};
    std::vector<bool> has_attention(multiples.size());
    *(has_attention.end() - (options.small ? 1 : 2)) = true;  // At 16 x 16 pixels of 256 x 256.
    if (size % (1 << (multiples.size() - 1)) != 0) {
        throw std::invalid_argument("the DDPM UNet takes images of a multiple of 32 pixels");
    }
    return std::make_unique<DDPM>(engine, size, options.small ? 32 : 128, multiples, has_attention);
}

}  // namespace distile::networks
