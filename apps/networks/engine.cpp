#include "engine.h"
#include "autoscheduler/compile/process.h"
#include "plain.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <distile/tokens.h>

namespace distile::networks {

namespace {

using Clock = std::chrono::steady_clock;

bool same(const Operator &a, const Operator &b) {
    return a.key() == b.key();
}

distile_window pooling_window(int32_t kernel, int32_t stride, int32_t padding) {
    return {kernel, kernel, stride, stride, 1, 1, padding, padding, DISTILE_WINDOW_CONV};
}

}  // namespace

Tensor Tensor::part(int32_t first, int32_t count) const {
    Tensor part = *this;
    part.view.data = static_cast<float *>(view.data) + first;
    part.view.channels = count;
    return part;
}

Tensor Tensor::every(int32_t step) const {
    Tensor sparse = *this;
    sparse.view.height = (view.height + step - 1) / step;
    sparse.view.width = (view.width + step - 1) / step;
    sparse.view.stride_h *= step;
    sparse.view.stride_w *= step;
    return sparse;
}

std::vector<float> Tensor::values() const {
    std::vector<float> values;
    for (int32_t n = 0; n < view.batch; n++) {
        for (int32_t y = 0; y < view.height; y++) {
            for (int32_t x = 0; x < view.width; x++) {
                values.insert(values.end(), at(n, y, x), at(n, y, x) + view.channels);
            }
        }
    }
    return values;
}

void draw(uint64_t seed, float deviation, float *values, size_t count) {
    const float scale = deviation * std::sqrt(3.0F);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = (seed + 1) * 0x9e3779b97f4a7c15U + i * 0xd1342543de82ef95U;  // splitmix64
        bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9U;
        bits = (bits ^ bits >> 27) * 0x94d049bb133111ebU;
        bits ^= bits >> 31;
        values[i] = (static_cast<float>(bits >> 40) / static_cast<float>(1 << 23) - 1) * scale;
    }
}

Norm::Norm(int32_t channels, float epsilon, uint64_t seed) : epsilon(epsilon), gamma(channels), beta(channels) {
    draw(seed, .2F, gamma.data(), gamma.size());
    draw(~seed, .1F, beta.data(), beta.size());
    for (float &value : gamma) {
        value += 1;
    }
}

/** Adds the time of a layer. */
class Engine::Timed {
public:
    Timed(Engine &engine, const std::string &type) : total_(engine.milliseconds_[type]) {
        if (Interrupts::seen()) {
            throw Interrupted();
        }
        if (engine.before_layer) {
            engine.before_layer(engine.layers_);
        }
        engine.layers_++;
        start_ = Clock::now();
    }
    ~Timed() {
        total_ += std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
    }
    Timed(const Timed &) = delete;
    Timed &operator=(const Timed &) = delete;

private:
    double &total_;
    Clock::time_point start_;
};

Engine::Engine(int32_t threads, bool stages) {
    distile_context_options options{};
    options.threads = threads;
    context_ = make_context(options);
    none_ = distile::make_mask(context_);
    if (stages) {
        stage_ = std::make_unique<Stage>(context_);
    }
}

void Engine::finish() {
    if (stage_ && !stage_->is_empty()) {
        const Timed timed(*this, "stage");
        stage_->run();
    }
}

void Engine::start_step() {
    milliseconds_.clear();
    layers_ = 0;
    most_bytes_ = live_bytes();
}

int64_t Engine::live_bytes() const {
    int64_t bytes = 0;
    for (const auto &block : blocks_) {
        bytes += block.use_count() > 1 ? static_cast<int64_t>(block->size() * sizeof(float)) : 0;
    }
    return bytes;
}

Tensor Engine::make(int32_t batch, int32_t height, int32_t width, int32_t channels) {
    const size_t size = size_t{1} * batch * height * width * channels;
    const auto is_free = [&](const auto &block) { return block.use_count() == 1 && block->size() == size; };
    auto block = std::find_if(blocks_.begin(), blocks_.end(), is_free);
    if (block == blocks_.end()) {
        block = blocks_.insert(block, std::make_shared<AlignedFloats>(size));
    }
    if (mode == Mode::reference) {
        std::fill_n((*block)->data(), size, std::nanf(""));
    }
    Tensor tensor{distile_tensor_make((*block)->data(), batch, height, width, channels),
                  std::shared_ptr<float>(*block, (*block)->data())};
    most_bytes_ = std::max(most_bytes_, live_bytes());
    return tensor;
}

Tensor Engine::make_like(const Tensor &tensor) {
    return make(tensor.view.batch, tensor.view.height, tensor.view.width, tensor.view.channels);
}

Mask Engine::make_mask() const {
    return distile::make_mask(context_);
}

distile_mask *Engine::full(const Tensor &tensor) {
    const distile_tensor &view = tensor.view;
    Mask &mask = full_[{view.batch, view.height, view.width}];
    if (!mask) {
        mask = make_mask();
        const std::vector<uint8_t> bytes(size_t{1} * view.batch * view.height * view.width, 1);
        check(context_, distile_mask_set_bytes(mask.get(), bytes.data(), view.batch, view.height, view.width,
                                               int64_t{view.height} * view.width, view.width));
    }
    return mask.get();
}

std::vector<uint8_t> Engine::bytes_of(distile_mask *mask, const Tensor &tensor) {
    const uint32_t *words = nullptr;
    int32_t words_per_row = 0;
    if (distile_mask_bits(mask, &words, &words_per_row) != DISTILE_OK) {
        throw std::runtime_error("a mask was never set");
    }
    std::vector<uint8_t> bytes;
    for (int64_t row = 0; row < int64_t{tensor.view.batch} * tensor.view.height; row++) {
        for (int32_t x = 0; x < tensor.view.width; x++) {
            bytes.push_back(words[row * words_per_row + x / 32] >> (x % 32) & 1);
        }
    }
    return bytes;
}

distile_mask *Engine::scored(const Mask &mask, const Tensor &input, const std::vector<float> &weights,
                             float threshold) {
    if (mode == Mode::dense || mode == Mode::dry) {
        return full(input);
    }
    if (mode == Mode::masked && stage_) {
        stage_->score(mask.get(), input.view, weights, threshold);
    } else if (mode == Mode::masked) {
        const Timed timed(*this, "masks");
        check(context_, distile_mask_set_scores(mask.get(), &input.view, weights.data(), 0, threshold));
    }
    return mask.get();
}

distile_mask *Engine::from_bytes(const Mask &mask, const Tensor &tensor, const std::vector<uint8_t> &bytes) {
    if (mode == Mode::dense || mode == Mode::dry) {
        return full(tensor);
    }
    if (mode == Mode::masked) {
        finish();  // A stage may read the mask as it was.
        const Timed timed(*this, "masks");
        const distile_tensor &view = tensor.view;
        check(context_, distile_mask_set_bytes(mask.get(), bytes.data(), view.batch, view.height, view.width,
                                               int64_t{view.height} * view.width, view.width));
    }
    return mask.get();
}

distile_mask *Engine::needed_input(const Mask &mask, distile_mask *output, const Operator &op, const Tensor &input) {
    if (mode == Mode::dense || mode == Mode::dry) {
        return full(input);
    }
    if (mode == Mode::masked && stage_) {
        stage_->need(mask.get(), output, window_of(op));
    } else if (mode == Mode::masked || stage_) {  // A stage finds the pixels, and leaves the mask to the reference.
        const Timed timed(*this, "masks");
        const distile_window window = window_of(op);
        check(context_, distile_mask_needed_input(mask.get(), output, &window, input.view.height, input.view.width));
    }
    return mask.get();
}

distile_mask *Engine::inverted(const Mask &mask, distile_mask *output) {
    // A dense step leaves the mask to the reference of the last masked one.
    const Mask &inverse = mode == Mode::dense || mode == Mode::dry ? none_ : mask;
    if (mode != Mode::reference) {
        finish();
        const Timed timed(*this, "masks");
        check(context_, distile_mask_invert(inverse.get(), output));
    }
    return inverse.get();
}

void Engine::prepare(const Layer &layer) {
    const distile_polykernel *polykernel = layer.op.polykernel();
    if (!polykernel) {
        polykernel = bindings::general_polykernel(layer.op.key());
    }
    if (!polykernel || layer.kernel) {
        return;
    }
    Kernel &kernel = kernels_[polykernel];
    if (!kernel) {
        kernel = make_kernel(context_, *polykernel);
    }
    if (layer.op.kind != DISTILE_MASKED_ATTENTION) {
        layer.weights = pack_weights(context_, kernel, plain::draw_weights(layer).source());
        weights_bytes_ += distile_weights_bytes(layer.weights.get());
    }
    layer.kernel = kernel.get();
}

bool Engine::runs_kernel(const Layer &layer, const Tensor &output) {
    if (mode == Mode::dry) {
        if (std::none_of(operators_.begin(), operators_.end(),
                         [&](const auto &known) { return same(known.first, layer.op); })) {
            operators_.emplace_back(layer.op, output.view);
        }
        return false;
    }
    if (mode != Mode::reference) {
        prepare(layer);
    }
    return mode != Mode::reference && layer.kernel;
}

bool Engine::is_staged(const Layer &layer) const {
    return stage_ && (mode == Mode::masked || mode == Mode::dense) && layer.op.kind == DISTILE_MASKED_CONV2D &&
           layer.op.conv.groups == 1;
}

void Engine::stage(const Layer &layer, const Tensor &input, const Tensor &output, distile_mask *mask,
                   const Tensor *residual) {
    if (layer.stage_weights.packed.empty()) {
        layer.stage_weights = stage_->pack(layer.op, plain::draw_weights(layer).source());
        weights_bytes_ += static_cast<int64_t>(layer.stage_weights.packed.size());
    }
    stage_->convolve(layer.op, layer.stage_weights, input.view, output.view, mask == full(output) ? nullptr : mask,
                     residual ? &residual->view : nullptr);
}

void Engine::run(const Layer &layer, const Tensor &input, const Tensor &output, distile_mask *mask,
                 const Tensor *residual) {
    if (is_staged(layer)) {
        stage(layer, input, output, mask, residual);
        return;
    }
    finish();
    const bool by_kernel = runs_kernel(layer, output);
    const Timed timed(*this, layer.op.type());
    if (by_kernel) {
        distile_run_args args{};
        args.input = &input.view;
        args.output = &output.view;
        args.residual = residual ? &residual->view : nullptr;
        args.weights = layer.weights.get();
        args.mask = mask;
        check(context_, distile_run(layer.kernel, &args));
    } else if (mode != Mode::dry) {
        plain::run(layer, input, output, bytes_of(mask, output), residual, threads());
    }
}

void Engine::attend(const Layer &layer, const Tensor &query, const Tensor &key, const Tensor &value,
                    const Tensor &output, distile_mask *mask) {
    finish();
    const bool by_kernel = runs_kernel(layer, output);
    const Timed timed(*this, layer.op.type());
    if (by_kernel) {
        distile_run_args args{};
        args.input = &query.view;
        args.key = &key.view;
        args.value = &value.view;
        args.output = &output.view;
        args.mask = mask;
        args.key_mask = mask;
        check(context_, distile_run(layer.kernel, &args));
    } else if (mode != Mode::dry) {
        plain::attend(layer, query, key, value, output, bytes_of(mask, output), threads());
    }
}

void Engine::normalize(const Norm &norm, const Tensor &input, const Tensor &output, distile_mask *mask) {
    finish();
    const Timed timed(*this, "norm");
    if (mode == Mode::reference) {
        plain::normalize(norm, input, output, bytes_of(mask, output));
    } else if (mode != Mode::dry) {
        distile_normalize_args args{};
        args.input = &input.view;
        args.output = &output.view;
        args.mask = mask;
        args.gamma = norm.gamma.data();
        args.beta = norm.beta.data();
        args.epsilon = norm.epsilon;
        check(context_, distile_normalize(context_.get(), &args));
    }
}

void Engine::max_pool(const Tensor &input, const Tensor &output, int32_t kernel, int32_t stride, int32_t padding) {
    finish();
    const Timed timed(*this, "pooling");
    if (mode == Mode::reference) {
        plain::max_pool(input, output, kernel, stride, padding);
    } else if (mode != Mode::dry) {
        distile_pool_args args{};
        args.input = &input.view;
        args.output = &output.view;
        args.mask = full(output);
        args.window = pooling_window(kernel, stride, padding);
        args.pooling = DISTILE_MAX_POOLING;
        check(context_, distile_pool(context_.get(), &args));
    }
}

void Engine::mean_of_pixels(const Tensor &input, const Tensor &output) {
    finish();
    const Timed timed(*this, "pooling");
    if (mode == Mode::reference) {
        plain::mean_of_pixels(input, output);
    } else if (mode != Mode::dry) {
        distile_global_pool_args args{};
        args.input = &input.view;
        args.output = &output.view;
        args.pooling = DISTILE_AVERAGE_POOLING;
        check(context_, distile_global_pool(context_.get(), &args));
    }
}

void Engine::copy(const Tensor &input, const Tensor &output, distile_mask *mask, distile_activation activation) {
    finish();
    const Timed timed(*this, "other");
    if (mode == Mode::reference) {
        plain::copy(input, output, bytes_of(mask, output), activation);
    } else if (mode != Mode::dry) {
        distile_combine_args args{};
        args.input = &input.view;
        args.output = &output.view;
        args.mask = mask;
        args.combination = DISTILE_COPY;
        args.activation = activation;
        check(context_, distile_combine(context_.get(), &args));
    }
}

}  // namespace distile::networks
