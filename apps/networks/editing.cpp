#include "editing.h"
#include <algorithm>
#include <cmath>

namespace distile::networks {

void EditedNetwork::take_inputs(const Tensor &original, const Tensor &edited) {
    original_ = original;
    edited_ = edited;
    edit_ = engine_.make_mask();
}

void EditedNetwork::start() {
    // With full masks, and as if every layer were a part of the network for good.
    engine_.mode = Mode::dense;
    keeps_ = true;
    kept_.clear();
    graph(original_);
    keeps_ = false;
    copies_.clear();
    for (const Tensor &kept : kept_) {
        Tensor &copy = copies_.emplace_back(engine_.make_like(kept));
        engine_.combine(DISTILE_COPY, kept, nullptr, copy, engine_.full(copy));
    }
}

std::vector<Tensor> EditedNetwork::step() {
    next_ = 0;
    if (engine_.mode == Mode::masked) {
        densities_.clear();
        set_edit_mask(edit_);
        for (auto &[size, resized] : resized_) {
            resized.is_set = resized.has_tokens = false;
        }
    }
    std::vector<Tensor> results = graph(edited_);
    // What stays is a result too.
    if (engine_.mode == Mode::masked) {
        results.insert(results.end(), kept_.begin(), kept_.end());
    } else if (engine_.mode == Mode::reference) {
        results.insert(results.end(), copies_.begin(), copies_.end());
    }
    return results;
}

std::vector<double> EditedNetwork::densities() const {
    return densities_;
}

int64_t EditedNetwork::kept_bytes() const {
    int64_t bytes = 0;
    for (const Tensor &kept : kept_) {
        const distile_tensor &view = kept.view;
        bytes += int64_t{4} * view.batch * view.height * view.width * view.channels;
    }
    return bytes;
}

distile_mask *EditedNetwork::mask_at(const Tensor &tensor) {
    if (engine_.mode == Mode::dense || engine_.mode == Mode::dry) {
        return engine_.full(tensor);
    }
    Resized &resized = resized_[{tensor.view.height, tensor.view.width}];
    if (!resized.pixels) {
        resized.pixels = engine_.make_mask();
        resized.tokens = engine_.make_mask();
    }
    if (!resized.is_set) {
        engine_.resized(resized.pixels, edit_.get(), edited_, tensor);
        resized.is_set = true;
    }
    return resized.pixels.get();
}

distile_mask *EditedNetwork::token_mask_at(const Tensor &tensor) {
    const Tensor tokens = tensor.tokens();
    distile_mask *mask = mask_at(tensor);
    if (engine_.mode == Mode::dense || engine_.mode == Mode::dry) {
        return engine_.full(tokens);
    }
    Resized &resized = resized_[{tensor.view.height, tensor.view.width}];
    if (!resized.has_tokens) {
        engine_.from_bytes(resized.tokens, tokens, Engine::bytes_of(mask, tensor));
        resized.has_tokens = true;
    }
    return resized.tokens.get();
}

EditedNetwork::Result EditedNetwork::result(int32_t batch, int32_t height, int32_t width, int32_t channels) {
    if (engine_.mode == Mode::dense || engine_.mode == Mode::dry) {
        const Tensor tensor = engine_.make(batch, height, width, channels);
        if (keeps_) {
            kept_.push_back(tensor);
        }
        return {tensor, mask_at(tensor)};
    }
    const Tensor tensor = (engine_.mode == Mode::reference ? copies_ : kept_).at(next_++);
    distile_mask *mask = mask_at(tensor);
    if (engine_.mode == Mode::masked) {
        int64_t active = 0;
        if (distile_mask_active_pixels(mask, &active) != DISTILE_OK) {
            throw std::runtime_error("the mask of the edit was not set");
        }
        densities_.push_back(static_cast<double>(active) / (double{1} * batch * height * width));
    }
    return {tensor, mask};
}

EditedNetwork::Result EditedNetwork::result_of(const Layer &layer, const Tensor &input) {
    const distile_conv2d &conv = layer.op.conv;
    const distile_tensor &view = input.view;
    if (layer.op.kind == DISTILE_MASKED_UPSAMPLE_CONV2D) {
        return result(view.batch, view.height * conv.stride_h, view.width * conv.stride_w, conv.out_channels);
    }
    return result(view.batch, (view.height + conv.pad_top + conv.pad_bottom - conv.kernel_h) / conv.stride_h + 1,
                  (view.width + conv.pad_left + conv.pad_right - conv.kernel_w) / conv.stride_w + 1, conv.out_channels);
}

Tensor EditedNetwork::run(const Layer &layer, const Tensor &input, const Tensor *residual) {
    const Result to = result_of(layer, input);
    engine_.run(layer, input, to.tensor, to.mask, residual);
    return to.tensor;
}

Tensor EditedNetwork::run_shifted(const Layer &layer, const Tensor &input, const Tensor &shift) {
    const Result to = result_of(layer, input);
    engine_.run(layer, input, to.tensor, to.mask);
    engine_.combine(DISTILE_ADD, to.tensor, &shift, to.tensor, to.mask);
    return to.tensor;
}

Tensor EditedNetwork::normalize(Norm &norm, const Tensor &input) {
    const distile_tensor &view = input.view;
    const Result to = result(view.batch, view.height, view.width, view.channels);
    if (keeps_ && norm.groups > 0) {
        engine_.keep_statistics(norm, input);
    }
    // Without the edit's mask, the statistics are those of the whole input.
    const bool of_input = engine_.mode == Mode::dense && !keeps_ && norm.groups > 0 && norm.groups < view.channels;
    std::vector<float> mean, variance;
    if (of_input) {
        mean.swap(norm.mean);
        variance.swap(norm.variance);
    }
    engine_.normalize(norm, input, to.tensor, to.mask);
    if (of_input) {
        mean.swap(norm.mean);
        variance.swap(norm.variance);
    }
    return to.tensor;
}

Tensor EditedNetwork::combine(distile_combination combination, const Tensor &input, const Tensor *other,
                              distile_activation activation, distile_activation other_activation) {
    const distile_tensor &view = input.view;
    const Result to = result(view.batch, view.height, view.width, view.channels);
    engine_.combine(combination, input, other, to.tensor, to.mask, activation, other_activation);
    return to.tensor;
}

Tensor EditedNetwork::upsample(const Tensor &input) {
    const distile_tensor &view = input.view;
    const Result to = result(view.batch, 2 * view.height, 2 * view.width, view.channels);
    engine_.upsample(input, to.tensor, to.mask);
    return to.tensor;
}

Tensor EditedNetwork::join(const Tensor &first, const Tensor &second) {
    const distile_tensor &view = first.view;
    const int32_t channels = view.channels;
    const Result to = result(view.batch, view.height, view.width, channels + second.view.channels);
    engine_.combine(DISTILE_COPY, first, nullptr, to.tensor.part(0, channels), to.mask);
    engine_.combine(DISTILE_COPY, second, nullptr, to.tensor.part(channels, second.view.channels), to.mask);
    return to.tensor;
}

Tensor EditedNetwork::attend(const Layer &layer, const Tensor &query, const Tensor &key, const Tensor &value) {
    const distile_tensor &view = query.view;
    const Result to = result(view.batch, view.height, view.width, view.channels);
    engine_.attend(layer, query.tokens(), key.tokens(), value.tokens(), to.tensor.tokens(), token_mask_at(to.tensor),
                   nullptr);
    return to.tensor;
}

Tensor EditedNetwork::whole(const Layer &layer, const Tensor &input) {
    Tensor output = engine_.make(input.view.batch, 1, input.view.width, layer.op.conv.out_channels);
    engine_.run(layer, input, output, engine_.full(output));
    return output;
}

}  // namespace distile::networks
