// SIGE: the GauGAN generator for street scenes of 256 x 512 pixels, on a map of classes and its edit. The leaky ReLUs
// of the original are ReLUs here. The result is that before the tanh.
#include "editing.h"
#include "inputs.h"
#include <algorithm>
#include <cmath>

namespace distile::networks {

namespace {

/** A batch norm whose factors and summands come from the map of classes, and an activation. */
struct Spade {
    Norm norm;
    Layer shared, factor, summand;
};

/** shortcut + convolution(spade(convolution(spade))) */
struct SpadeBlock {
    Spade first, second, of_shortcut;
    Layer conv1, conv2, shortcut;
    bool changes_channels = false;
};

/** A drawn map of classes [height][width]: sky, houses, a road, and things on it. */
std::vector<int32_t> street_scene(int32_t height, int32_t width) {
    std::vector<int32_t> scene;
    for (int32_t row = 0; row < height; row++) {
        for (int32_t column = 0; column < width; column++) {
            const double y = static_cast<double>(row) / (height - 1), x = static_cast<double>(column) / (width - 1);
            int32_t found = 1;
            for (int32_t house = 0; house < 9; house++) {
                const bool inside = x > house / 9.0 && x < (house + .9) / 9 && y < .6;
                found = inside && y > .2 + .03 * (house * 5 % 7) ? 2 + house % 4 : found;
            }
            found = y > .6 && std::abs(x - .5) < y - .35 ? 7 : found;
            found = std::pow(x - .42, 2) + std::pow(y - .75, 2) < .004 ? 8 : found;
            scene.push_back(found);
        }
    }
    return scene;
}

class GauGAN : public EditedNetwork {
public:
    GauGAN(Engine &engine, int32_t height, int32_t channels, int32_t classes, int32_t hidden)
        : EditedNetwork(engine), classes_(classes), hidden_(hidden) {
        std::vector<int32_t> widths(3, 16 * channels);
        for (const int32_t multiple : {8, 4, 2, 1}) {
            widths.push_back(multiple * channels);
        }
        enter_ = Layer(conv2d(classes, widths[0], 3), seed());
        for (size_t i = 0; i < widths.size(); i++) {
            add_block(widths[i == 0 ? 0 : i - 1], widths[i]);
        }
        leave_ = Layer(conv2d(channels, 3, 3), seed(), .3F);
        const std::vector<int32_t> street = street_scene(height, 2 * height);
        const std::vector<uint8_t> mask = pooled_real_mask("sige_sd_inpaint", height, 2 * height);
        const Tensor original = engine.make(1, height, 2 * height, classes), edited = engine.make_like(original);
        for (size_t i = 0; i < street.size(); i++) {
            std::fill_n(original.at(0, 0, 0) + i * classes, classes, 0.0F);
            std::fill_n(edited.at(0, 0, 0) + i * classes, classes, 0.0F);
            original.at(0, 0, 0)[i * classes + street[i]] = 1;
            edited.at(0, 0, 0)[i * classes + (mask[i] != 0 ? classes / 2 : street[i])] = 1;
        }
        take_inputs(original, edited);
    }

protected:
    void set_edit_mask(const Mask &mask) override {
        engine_.mark_difference(mask, original(), edited(), 0, 0);
    }

    std::vector<Tensor> graph(const Tensor &classes) override {
        Tensor x = run(enter_, classes.every(32));
        for (size_t i = 0; i < blocks_.size(); i++) {
            x = run_block(blocks_[i], x, classes);
            x = i != 1 && i + 1 < blocks_.size() ? upsample(x) : x;
        }
        return {run(leave_, combine(DISTILE_COPY, x, nullptr, DISTILE_ACTIVATION_RELU))};
    }

private:
    Spade spade(int32_t channels) {
        Spade spade;
        spade.norm.groups = channels;
        spade.shared = Layer(conv2d(classes_, hidden_, 3).then(DISTILE_ACTIVATION_RELU), seed());
        spade.factor = Layer(conv2d(hidden_, channels, 3), seed(), .3F, 1);  // GauGAN multiplies by 1 + factor.
        spade.summand = Layer(conv2d(hidden_, channels, 3), seed());
        return spade;
    }

    void add_block(int32_t in, int32_t out) {
        SpadeBlock &block = blocks_.emplace_back();
        const int32_t middle = std::min(in, out);
        block.first = spade(in);
        block.second = spade(middle);
        block.conv1 = Layer(conv2d(in, middle, 3), seed());
        block.conv2 = Layer(conv2d(middle, out, 3).with_residual(), seed());
        block.changes_channels = in != out;
        if (block.changes_channels) {
            block.of_shortcut = spade(in);
            block.shortcut = Layer(conv2d(in, out, 1), seed());
            block.shortcut.has_bias = false;
        }
    }

    Tensor run_spade(Spade &spade, const Tensor &x, const Tensor &classes, distile_activation activation) {
        const Tensor hidden = run(spade.shared, classes.every(classes.view.height / x.view.height));
        const Tensor normal = normalize(spade.norm, x), factor = run(spade.factor, hidden);
        const Tensor product = combine(DISTILE_MULTIPLY, normal, &factor), summand = run(spade.summand, hidden);
        return combine(DISTILE_ADD, product, &summand, activation);
    }

    Tensor run_block(SpadeBlock &block, const Tensor &x, const Tensor &classes) {
        const Tensor shortcut =
            block.changes_channels
                ? run(block.shortcut, run_spade(block.of_shortcut, x, classes, DISTILE_ACTIVATION_NONE))
                : x;
        const Tensor h = run(block.conv1, run_spade(block.first, x, classes, DISTILE_ACTIVATION_RELU));
        return run(block.conv2, run_spade(block.second, h, classes, DISTILE_ACTIVATION_RELU), &shortcut);
    }

    int32_t classes_, hidden_;
    Layer enter_, leave_;
    std::vector<SpadeBlock> blocks_;
};

}  // namespace

std::unique_ptr<Network> make_sige_gaugan(Engine &engine, const Options &options) {
    const int32_t height = options.size > 0 ? options.size : options.small ? 64 : 256;
    if (height > 512 || 512 % height != 0 || height < 64) {
        throw std::invalid_argument("the GauGAN generator takes maps of 64, 128, 256 or 512 rows");
    }
    return options.small ? std::make_unique<GauGAN>(engine, height, 8, 12, 16)
                         : std::make_unique<GauGAN>(engine, height, 64, 36, 128);
}

}  // namespace distile::networks
