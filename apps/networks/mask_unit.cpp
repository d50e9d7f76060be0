#include "mask_unit.h"
#include "inputs.h"
#include <cmath>
#include <numeric>

namespace distile::networks {

MaskUnit::MaskUnit(Engine &engine, int32_t channels, uint64_t seed)
    : engine_(&engine), weights_(channels), mask_(engine.make_mask()) {
    draw(seed, 1 / std::sqrt(static_cast<float>(channels)), weights_.data(), weights_.size());
}

distile_mask *MaskUnit::run(const Tensor &input) {
    if (wanted_ && engine_->mode == Mode::masked) {
        const std::vector<float> values = input.values();
        std::vector<float> scores;
        for (auto pixel = values.begin(); pixel != values.end(); pixel += input.view.channels) {
            scores.push_back(std::inner_product(pixel, pixel + input.view.channels, weights_.begin(), 0.0F));
        }
        threshold_ = threshold_of(std::move(scores), *wanted_);
        wanted_.reset();
    }
    pixels_ = int64_t{input.view.batch} * input.view.height * input.view.width;
    return engine_->scored(mask_, input, weights_, threshold_);
}

double MaskUnit::density() const {
    int64_t active = 0;
    if (distile_mask_active_pixels(mask_.get(), &active) != DISTILE_OK) {
        throw std::runtime_error("the mask unit did not run");
    }
    return static_cast<double>(active) / static_cast<double>(pixels_);
}

}  // namespace distile::networks
