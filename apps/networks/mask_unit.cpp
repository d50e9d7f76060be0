#include "mask_unit.h"
#include "inputs.h"
#include <Eigen/Dense>

namespace distile::networks {

MaskUnit::MaskUnit(Engine &engine, int32_t channels) : engine_(&engine), weights_(channels), mask_(engine.make_mask()) {
}

void MaskUnit::train(const Tensor &input, double density) {
    const distile_tensor &view = input.view;
    const std::vector<float> values = input.values();
    const std::vector<double> field = smooth_fields(view.batch, view.height, view.width);
    using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const auto pixels = static_cast<Eigen::Index>(field.size());
    const Eigen::MatrixXd features = Eigen::Map<const Matrix>(values.data(), pixels, view.channels).cast<double>();
    // Ridge regression.
    Eigen::MatrixXd square = features.transpose() * features;
    square.diagonal().array() += 1e-3 * square.diagonal().mean();
    const Eigen::VectorXd found =
        square.ldlt().solve(features.transpose() * Eigen::Map<const Eigen::VectorXd>(field.data(), pixels));
    Eigen::Map<Eigen::VectorXf>(weights_.data(), view.channels) = found.normalized().cast<float>();

    const Eigen::VectorXf scores = (features * found.normalized()).cast<float>();
    threshold_ = threshold_of({scores.begin(), scores.end()}, density);
}

distile_mask *MaskUnit::run(const Tensor &input) {
    if (wanted_ && engine_->mode == Mode::masked) {
        engine_->finish();
        train(input, *wanted_);
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
