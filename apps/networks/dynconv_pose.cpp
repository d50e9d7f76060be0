// DynConv's pose network: four hourglasses of MobileNetV2 blocks, 57 in all, each with a mask unit. The units are
// trained to select regions, of DynConv's published densities.
#include "inputs.h"
#include "mask_unit.h"
#include "network.h"
#include <cmath>

namespace distile::networks {

namespace {

/** x + masked branch: expand by 1x1, depthwise 3x3, project by 1x1. Batch norms are in the weights. */
struct InvertedResidual {
    MaskUnit unit;
    Layer expand, depthwise, project;
    Mask read; /**< What the depthwise convolution reads. */
};

/** Features at several resolutions, joined by sums: blocks at the side of a level, before the next one and after it. */
struct Hourglass {
    std::vector<InvertedResidual> side, down, up; /**< One a level. */
    InvertedResidual bottom;
};

class PoseNetwork : public Network {
public:
    PoseNetwork(Engine &engine, int32_t size, double density, int32_t batch, int32_t stacks, int32_t levels)
        : Network(engine), density_(density) {
        image_ = engine.make(batch, size, size, 3);
        const std::vector<float> pixels = photo(size, batch);
        std::copy(pixels.begin(), pixels.end(), image_.at(0, 0, 0));
        stem_ = Layer(conv2d(3, channels, 7, 4).then(DISTILE_ACTIVATION_RELU), seed());
        first_ = block();
        for (int32_t stack = 0; stack < stacks; stack++) {
            Hourglass &hourglass = hourglasses_.emplace_back();
            for (int32_t level = 0; level < levels; level++) {
                hourglass.side.push_back(block());
                hourglass.down.push_back(block());
                hourglass.up.push_back(block());
            }
            hourglass.bottom = block();
            after_.push_back(block());
        }
        heatmaps_ = Layer(conv2d(channels, joints, 1), seed());
    }

    void start() override {
        engine_.mode = Mode::masked;
        starting_ = block_densities(blocks_, density_);
        std::reverse(starting_.begin(), starting_.end());
        step();
    }

    std::vector<Tensor> step() override {
        order_.clear();
        Tensor x = engine_.make(image_.view.batch, image_.view.height / 4, image_.view.width / 4, channels);
        engine_.run(stem_, image_, x, engine_.full(x));
        run(first_, x);
        for (size_t stack = 0; stack < hourglasses_.size(); stack++) {
            const Tensor joined = run(hourglasses_[stack], 0, x);
            run(after_[stack], joined);
            engine_.combine(DISTILE_ADD, x, &joined, x, engine_.full(x));
        }
        const Tensor heatmaps = engine_.make(x.view.batch, x.view.height, x.view.width, joints);
        engine_.run(heatmaps_, x, heatmaps, engine_.full(heatmaps));
        return {heatmaps};
    }

    std::vector<double> densities() const override {
        std::vector<double> densities;
        for (const InvertedResidual *block : order_) {
            densities.push_back(block->unit.density());
        }
        return densities;
    }

private:
    static constexpr int32_t channels = 96, wide = 6 * channels, joints = 16;

    InvertedResidual block() {
        blocks_++;
        InvertedResidual block;
        block.unit = MaskUnit(engine_, channels);
        block.expand = Layer(conv2d(channels, wide, 1).then(DISTILE_ACTIVATION_RELU6), seed());
        block.depthwise = Layer(depthwise_conv2d(wide, 3).then(DISTILE_ACTIVATION_RELU6), seed());
        // Many blocks add to each other: a small gain keeps the sum's size.
        block.project = Layer(conv2d(wide, channels, 1).with_residual(), seed(), .3F);
        block.read = engine_.make_mask();
        return block;
    }

    /** Adds the branch to x. */
    void run(InvertedResidual &block, const Tensor &x) {
        order_.push_back(&block);
        if (!starting_.empty()) {
            block.unit.start(starting_.back());
            starting_.pop_back();
        }
        distile_mask *mask = block.unit.run(x);
        distile_mask *read = engine_.needed_input(block.read, mask, block.depthwise.op, x);
        const Tensor expanded = engine_.make(x.view.batch, x.view.height, x.view.width, wide);
        const Tensor filtered = engine_.make_like(expanded);
        engine_.run(block.expand, x, expanded, read);
        engine_.run(block.depthwise, expanded, filtered, mask);
        engine_.run(block.project, filtered, x, mask, &x);
    }

    /** Leaves x as it is. */
    Tensor run(Hourglass &hourglass, size_t level, const Tensor &x) {
        Tensor smaller = engine_.make(x.view.batch, x.view.height / 2, x.view.width / 2, channels);
        engine_.max_pool(x, smaller, 2, 2, 0);
        run(hourglass.down[level], smaller);
        if (level + 1 < hourglass.down.size()) {
            smaller = run(hourglass, level + 1, smaller);
        } else {
            run(hourglass.bottom, smaller);
        }
        run(hourglass.up[level], smaller);
        const Tensor larger = engine_.make_like(x);
        engine_.upsample(smaller, larger, engine_.full(larger));
        Tensor side = engine_.make_like(x);
        engine_.combine(DISTILE_COPY, x, nullptr, side, engine_.full(side));
        run(hourglass.side[level], side);
        engine_.combine(DISTILE_ADD, side, &larger, side, engine_.full(side));
        return side;
    }

    double density_;
    Tensor image_;
    Layer stem_, heatmaps_;
    InvertedResidual first_;
    std::vector<Hourglass> hourglasses_;
    std::vector<InvertedResidual> after_;
    size_t blocks_ = 0;
    std::vector<InvertedResidual *> order_; /**< The blocks in the order in which they run. */
    std::vector<double> starting_;          /**< Densities of the blocks that have not run yet, the last first. */
};

}  // namespace

std::unique_ptr<Network> make_dynconv_pose(Engine &engine, const Options &options) {
    const double density = options.density > 0 ? options.density : .383;
    const int32_t levels = options.small ? 2 : 4;
    const int32_t size = options.size > 0 ? options.size : options.small ? 64 : 256;
    if (size % (4 << levels) != 0) {
        throw std::invalid_argument("this pose network takes images of a multiple of " + std::to_string(4 << levels) +
                                    " pixels");
    }
    return std::make_unique<PoseNetwork>(engine, size, density, options.batch, options.small ? 1 : 4, levels);
}

}  // namespace distile::networks
