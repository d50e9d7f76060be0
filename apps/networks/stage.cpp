#include "stage.h"

namespace distile::networks {

distile_window window_of(const Operator &op) {
    const distile_conv2d &conv = op.conv;
    return {conv.kernel_h,   conv.kernel_w, conv.stride_h, conv.stride_w,      conv.dilation_h,
            conv.dilation_w, conv.pad_top,  conv.pad_left, DISTILE_WINDOW_CONV};
}

StageWeights Stage::pack(const Operator &op, const distile_weights_source &source) const {
    const distile_conv2d &conv = op.conv;
    StageWeights weights;
    weights.packed.resize(
        static_cast<size_t>(distile_stage_weights_bytes(context_.get(), DISTILE_FLOAT32, conv.out_channels,
                                                        conv.in_channels, conv.kernel_h, conv.kernel_w, conv.groups)));
    check(context_, distile_pack_stage_weights(context_.get(), DISTILE_FLOAT32, conv.out_channels, conv.in_channels,
                                               conv.kernel_h, conv.kernel_w, conv.groups,
                                               static_cast<const float *>(source.filter), weights.packed.data()));
    weights.bias.assign(source.bias, source.bias + conv.out_channels);
    return weights;
}

const distile_tensor *Stage::keep(const distile_tensor &tensor) {
    tensors_.push_back(tensor);
    return &tensors_.back();
}

void Stage::score(distile_mask *mask, const distile_tensor &input, const std::vector<float> &weights, float threshold) {
    distile_stage_step step{};
    step.kind = DISTILE_STEP_SCORES;
    step.input = keep(input);
    step.mask = mask;
    step.window = {1, 1, 1, 1, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
    step.weights = weights.data();
    step.threshold = threshold;
    steps_.push_back(step);
}

void Stage::need(distile_mask *mask, distile_mask *output, const distile_window &window) {
    needed_[mask] = {output, window};
}

void Stage::convolve(const Operator &op, const StageWeights &weights, const distile_tensor &input,
                     const distile_tensor &output, distile_mask *mask, const distile_tensor *residual) {
    distile_stage_step step{};
    step.kind = DISTILE_STEP_CONV2D;
    step.input = keep(input);
    step.output = keep(output);
    step.residual = residual ? keep(*residual) : nullptr;
    const auto needed = needed_.find(mask);
    step.mask = needed == needed_.end() ? mask : needed->second.output;
    step.reader = needed == needed_.end() ? nullptr : &needed->second.window;
    step.window = window_of(op);
    step.weights = weights.packed.data();
    step.bias = weights.bias.data();
    step.activation = op.conv.epilogue;
    steps_.push_back(step);
}

void Stage::run() {
    distile_stage_args args{};
    args.steps = steps_.data();
    args.num_steps = static_cast<int32_t>(steps_.size());
    const distile_status status = steps_.empty() ? DISTILE_OK : distile_run_stage(context_.get(), &args);
    steps_.clear();
    tensors_.clear();
    needed_.clear();
    check(context_, status);
}

}  // namespace distile::networks
