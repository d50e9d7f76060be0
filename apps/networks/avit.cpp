// A-ViT: a vision transformer whose tokens halt, each at its own layer. In each layer, the tokens that still run
// compute
//
//     x += projection(attention(query, key, value)), where all three are linear(layer norm(x))
//     x += linear(gelu(linear(layer norm(x))))
//
// and attend to each other. A token's scores add up from layer to layer; the score's shift is set so that as many
// tokens go on as the density says.
#include "inputs.h"
#include "network.h"
#include <algorithm>
#include <cmath>
#include <numeric>

namespace distile::networks {

namespace {

constexpr float halted = .99F; /**< A token halts when its scores add up to this. */
constexpr float epsilon = 1e-6F;

struct Sizes {
    int32_t channels, heads, layers = 12, pixels = 224, patch = 16, classes = 1000;
};

struct Block {
    Norm norm1, norm2;
    Layer query_key_value, attention, projection, up, down;
    Mask mask;
    float shift = 0;
    std::vector<uint8_t> running; /**< The mask: one byte for each token of each image. */
};

class AViT : public Network {
public:
    AViT(Engine &engine, const Sizes &sizes, double density, int32_t batch)
        : Network(engine), sizes_(sizes), batch_(batch), side_(sizes.pixels / sizes.patch), tokens_(side_ * side_ + 1),
          density_(density), image_(photo(sizes.pixels, batch)) {
        const int32_t channels = sizes.channels;
        embed_ = Layer(linear(sizes.patch * sizes.patch * 3, channels).with_residual(), seed());
        for (int32_t i = 0; i < sizes.layers; i++) {
            Block &block = blocks_.emplace_back();
            block.norm1 = Norm(channels, epsilon, seed());
            block.norm2 = Norm(channels, epsilon, seed());
            block.query_key_value = Layer(linear(channels, 3 * channels), seed());
            block.attention = Layer(attention(sizes.heads, channels / sizes.heads), 0);
            block.projection = Layer(linear(channels, channels).with_residual(), seed());
            block.up = Layer(linear(channels, 4 * channels).then(DISTILE_ACTIVATION_GELU), seed());
            block.down = Layer(linear(4 * channels, channels).with_residual(), seed());
            block.mask = engine.make_mask();
        }
        norm_ = Norm(channels, epsilon, seed());
        head_ = Layer(linear(channels, sizes.classes), seed());
        positions_ = engine.make(batch, 1, tokens_, channels);
        draw(seed(), .3F, positions_.at(0, 0, 0), size_t{1} * tokens_ * channels);
        draw(seed(), 1, positions_.at(0, 0, 0), channels);  // The class token.
        for (int32_t n = 1; n < batch; n++) {
            std::copy_n(positions_.at(0, 0, 0), size_t{1} * tokens_ * channels, positions_.at(n, 0, 0));
        }
    }

    /** A masked step, in which each layer's shift is set before the tokens halt. */
    void start() override {
        engine_.mode = Mode::masked;
        starting_ = true;
        step();
        starting_ = false;
    }

    std::vector<Tensor> step() override {
        total_.assign(size_t{1} * batch_ * tokens_, 0);
        rest_.assign(total_.size(), 1);
        going_.assign(total_.size(), 1);
        const Tensor x = embedded();
        const Tensor classes = class_tokens(x);
        const Tensor result = engine_.make_like(classes);
        std::fill_n(result.at(0, 0, 0), size_t{1} * batch_ * sizes_.channels, 0.0F);
        for (size_t i = 0; i < blocks_.size(); i++) {
            Block &block = blocks_[i];
            if (engine_.mode == Mode::masked) {
                block.running = going_;
            }
            run(block, x, engine_.from_bytes(block.mask, x, block.running));
            if (engine_.mode == Mode::masked || engine_.mode == Mode::reference) {
                halt(i, x, result);
            }
        }
        const bool halts = engine_.mode == Mode::masked || engine_.mode == Mode::reference;
        const Tensor normal = engine_.make_like(classes);
        const Tensor logits = engine_.make(batch_, 1, 1, sizes_.classes);
        engine_.normalize(norm_, halts ? result : classes, normal, engine_.full(normal));
        engine_.run(head_, normal, logits, engine_.full(logits));
        return {logits, x};
    }

    std::vector<double> densities() const override {
        std::vector<double> densities;
        for (const Block &block : blocks_) {
            densities.push_back(share(block.running));
        }
        return densities;
    }

private:
    static double share(const std::vector<uint8_t> &bytes) {
        return std::accumulate(bytes.begin(), bytes.end(), 0.0) / static_cast<double>(bytes.size());
    }

    static Tensor class_tokens(const Tensor &x) {
        Tensor first = x;
        first.view.width = 1;
        return first;
    }

    /** The patches as tokens behind the class token. */
    Tensor embedded() {
        const int64_t pixels = sizes_.pixels, patch = sizes_.patch, row = 3 * patch;
        const Tensor patches = engine_.make(batch_, 1, tokens_ - 1, static_cast<int32_t>(patch * row));
        for (int32_t n = 0; n < batch_; n++) {
            for (int64_t y = 0; y < pixels; y++) {
                for (int64_t x = 0; x < side_; x++) {
                    const auto token = static_cast<int32_t>(y / patch * side_ + x);
                    std::copy_n(&image_[(n * pixels + y) * pixels * 3 + x * row], row,
                                patches.at(n, 0, token) + y % patch * row);
                }
            }
        }
        Tensor x = engine_.make_like(positions_);
        engine_.copy(positions_, x, engine_.full(x));
        Tensor others = x;
        others.view.data = x.at(0, 0, 1);
        others.view.width--;
        engine_.run(embed_, patches, others, engine_.full(others), &others);
        return x;
    }

    void run(const Block &block, const Tensor &x, distile_mask *mask) {
        const int32_t channels = sizes_.channels;
        const Tensor normal = engine_.make_like(x), attended = engine_.make_like(x);
        const Tensor parts = engine_.make(batch_, 1, tokens_, 3 * channels);
        const Tensor hidden = engine_.make(batch_, 1, tokens_, 4 * channels);
        engine_.normalize(block.norm1, x, normal, mask);
        engine_.run(block.query_key_value, normal, parts, mask);
        engine_.attend(block.attention, parts.part(0, channels), parts.part(channels, channels),
                       parts.part(2 * channels, channels), attended, mask);
        engine_.run(block.projection, attended, x, mask, &x);
        engine_.normalize(block.norm2, x, normal, mask);
        engine_.run(block.up, normal, hidden, mask);
        engine_.run(block.down, hidden, x, mask, &x);
    }

    /** The tokens' scores: how much each comes closer to its halt, from 0 to 1, by its first channel, as in A-ViT. The
     * class token stays until the end. */
    std::vector<float> scores(size_t number, const Tensor &x) const {
        const bool last = number == blocks_.size() - 1;
        std::vector<float> scores(total_.size(), 1);
        for (size_t i = 0; i < scores.size() && !last; i++) {
            const auto n = static_cast<int32_t>(i / tokens_), token = static_cast<int32_t>(i % tokens_);
            scores[i] = 1 / (1 + std::exp(-2 * x.at(n, 0, token)[0] - blocks_[number].shift));
            scores[i] = token == 0 ? std::min(scores[i], .9F / static_cast<float>(blocks_.size())) : scores[i];
        }
        return scores;
    }

    /** The tokens that go on after a layer. */
    std::vector<uint8_t> going_after(const std::vector<float> &scores) const {
        std::vector<uint8_t> going(going_);
        for (size_t i = 0; i < going.size(); i++) {
            going[i] = going_[i] != 0 && total_[i] + scores[i] < halted;
        }
        return going;
    }

    /** Halts tokens, and adds what the class token contributes to the result. */
    void halt(size_t number, const Tensor &x, const Tensor &result) {
        if (starting_) {
            set_shift(number, x);
        }
        const std::vector<float> scores = this->scores(number, x);
        // A reference step halts as the masked one did, whose values differ in the last bits.
        const bool known = engine_.mode == Mode::reference && number + 1 < blocks_.size();
        const std::vector<uint8_t> going = known ? blocks_[number + 1].running : going_after(scores);
        for (size_t i = 0; i < going.size(); i++) {
            if (i % tokens_ == 0) {
                const auto n = static_cast<int32_t>(i / tokens_);
                const float part = going[i] != 0 ? scores[i] : rest_[i];
                std::transform(x.at(n, 0, 0), x.at(n, 0, 0) + sizes_.channels, result.at(n, 0, 0), result.at(n, 0, 0),
                               [&](float value, float sum) { return sum + part * value; });
            }
            total_[i] += going_[i] != 0 ? scores[i] : 0;
            rest_[i] -= going[i] != 0 ? scores[i] : 0;
        }
        going_ = going;
    }

    /** Sets a layer's shift so that the share of tokens falls from 1 to its last value on a curve with the mean
     * density. */
    void set_shift(size_t number, const Tensor &x) {
        float &shift = blocks_[number].shift;
        if (density_ >= 1) {
            shift = -100;
            return;
        }
        const double last = std::max(2 * density_ - 1, .05), bend = (1 - last) / (1 - density_) - 1;
        const double position = static_cast<double>(number + 1) / static_cast<double>(blocks_.size() - 1);
        const double wanted = 1 - (1 - last) * std::pow(position, bend);
        float low = -60, high = 60;
        for (int i = 0; i < 60; i++) {
            shift = (low + high) / 2;
            (share(going_after(scores(number, x))) > wanted ? low : high) = shift;
        }
    }

    Sizes sizes_;
    int32_t batch_, side_, tokens_;
    double density_;
    bool starting_ = false;
    std::vector<float> image_;
    Tensor positions_; /**< With the class token in the place of the first. */
    Layer embed_, head_;
    Norm norm_;
    std::vector<Block> blocks_;
    // For each token of a step: the sum of its scores, what is left of 1, and whether it goes on.
    std::vector<float> total_, rest_;
    std::vector<uint8_t> going_;
};

std::unique_ptr<Network> make(Engine &engine, const Options &options, int32_t heads) {
    Sizes sizes{64 * heads, heads};
    if (options.small) {
        sizes.layers = 4;
        sizes.pixels = 96;
        sizes.classes = 10;
    }
    sizes.pixels = options.size > 0 ? options.size : sizes.pixels;
    if (sizes.pixels % sizes.patch != 0) {
        throw std::invalid_argument("A-ViT takes images of a multiple of 16 pixels");
    }
    return std::make_unique<AViT>(engine, sizes, options.density > 0 ? options.density : .5, options.batch);
}

}  // namespace

std::unique_ptr<Network> make_avit_t(Engine &engine, const Options &options) {
    return make(engine, options, 3);
}

std::unique_ptr<Network> make_avit_s(Engine &engine, const Options &options) {
    return make(engine, options, 6);
}

}  // namespace distile::networks
