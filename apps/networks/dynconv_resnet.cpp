// DynConv's ResNet-101: a mask unit in every residual block says where it computes; elsewhere the block is the
// identity. The units are trained to select regions, in each block as dense as DynConv's published densities say.
#include "inputs.h"
#include "mask_unit.h"
#include "network.h"
#include <cmath>

namespace distile::networks {

namespace {

/** relu(shortcut + masked branch of 1x1, 3x3 and 1x1 convolutions). Batch norms are in the weights. */
struct Bottleneck {
    MaskUnit unit;
    Layer reduce, middle, expand;
    Layer shortcut; /**< Where the shape changes. */
    bool changes_shape = false;
    int32_t width = 0, stride = 1;
    Mask read, rest; /**< What the 3x3 convolution reads; and where the branch does not compute. */
};

class ResNet : public Network {
public:
    ResNet(Engine &engine, int32_t size, double density, int32_t batch, const std::vector<int32_t> &counts,
           int32_t width, int32_t classes)
        : Network(engine), density_(density), stem_(conv2d(3, width, 7, 2).then(DISTILE_ACTIVATION_RELU), seed()) {
        image_ = engine.make(batch, size, size, 3);
        const std::vector<float> pixels = photo(size, batch);
        std::copy(pixels.begin(), pixels.end(), image_.at(0, 0, 0));
        int32_t channels = width;
        for (size_t stage = 0; stage < counts.size(); stage++) {
            for (int32_t i = 0; i < counts[stage]; i++) {
                add_block(channels, width << stage, stage > 0 && i == 0 ? 2 : 1);
                channels = 4 * width << stage;
            }
        }
        head_ = Layer(linear(channels, classes), seed());
    }

    void start() override {
        const std::vector<double> densities = block_densities(blocks_.size(), density_);
        for (size_t i = 0; i < blocks_.size(); i++) {
            blocks_[i].unit.start(densities[i]);
        }
        engine_.mode = Mode::masked;
        step();
    }

    std::vector<Tensor> step() override {
        const Tensor wide = output_like(image_, stem_.op.conv.out_channels, 2);
        engine_.run(stem_, image_, wide, engine_.full(wide));
        Tensor x = output_like(wide, wide.view.channels, 2);
        engine_.max_pool(wide, x, 3, 2, 1);
        for (Bottleneck &block : blocks_) {
            x = run(block, x);
        }
        const Tensor mean = engine_.make(x.view.batch, 1, 1, x.view.channels);
        const Tensor logits = engine_.make(x.view.batch, 1, 1, head_.op.conv.out_channels);
        engine_.mean_of_pixels(x, mean);
        engine_.run(head_, mean, logits, engine_.full(logits));
        return {x, logits};
    }

    std::vector<double> densities() const override {
        std::vector<double> densities;
        for (const Bottleneck &block : blocks_) {
            densities.push_back(block.unit.density());
        }
        return densities;
    }

private:
    void add_block(int32_t channels, int32_t width, int32_t stride) {
        Bottleneck &block = blocks_.emplace_back();
        block.width = width;
        block.stride = stride;
        block.unit = MaskUnit(engine_, channels);
        block.reduce = Layer(conv2d(channels, width, 1).then(DISTILE_ACTIVATION_RELU), seed());
        block.middle = Layer(conv2d(width, width, 3, stride).then(DISTILE_ACTIVATION_RELU), seed());
        // Many blocks add to each other: a small gain keeps the sum's size.
        block.expand = Layer(conv2d(width, 4 * width, 1).then(DISTILE_ACTIVATION_RELU).with_residual(), seed(), .3F);
        block.changes_shape = channels != 4 * width;
        if (block.changes_shape) {
            block.shortcut = Layer(conv2d(channels, 4 * width, 1, stride), seed());
        }
        block.read = engine_.make_mask();
        block.rest = engine_.make_mask();
    }

    Tensor output_like(const Tensor &input, int32_t channels, int32_t stride) {
        const distile_tensor &view = input.view;
        return engine_.make(view.batch, (view.height + stride - 1) / stride, (view.width + stride - 1) / stride,
                            channels);
    }

    /** Changes x, unless there is a shortcut. */
    Tensor run(Bottleneck &block, const Tensor &x) {
        distile_mask *mask = block.unit.run(x.every(block.stride));
        distile_mask *read = engine_.needed_input(block.read, mask, block.middle.op, x);
        const Tensor reduced = output_like(x, block.width, 1);
        const Tensor middle = output_like(x, block.width, block.stride);
        engine_.run(block.reduce, x, reduced, read);
        engine_.run(block.middle, reduced, middle, mask);
        if (!block.changes_shape) {
            engine_.run(block.expand, middle, x, mask, &x);
            return x;
        }
        Tensor result = output_like(x, 4 * block.width, block.stride);
        engine_.run(block.shortcut, x, result, engine_.full(result));
        engine_.run(block.expand, middle, result, mask, &result);
        engine_.copy(result, result, engine_.inverted(block.rest, mask), DISTILE_ACTIVATION_RELU);
        return result;
    }

    double density_;
    Tensor image_;
    Layer stem_, head_;
    std::vector<Bottleneck> blocks_;
};

}  // namespace

std::unique_ptr<Network> make_dynconv_resnet(Engine &engine, const Options &options) {
    const double density = options.density > 0 ? options.density : .3;
    const int32_t size = options.size > 0 ? options.size : options.small ? 64 : 640;
    if (options.small) {
        return std::make_unique<ResNet>(engine, size, density, options.batch, std::vector<int32_t>{3, 2}, 16, 10);
    }
    return std::make_unique<ResNet>(engine, size, density, options.batch, std::vector<int32_t>{3, 4, 23, 3}, 64, 1000);
}

}  // namespace distile::networks
