/** \file
 * What runs the layers of a network: an Engine has the device, the tensors, the times and the memory, and computes
 * every layer in one of four ways. A network is thus written once.
 */
#ifndef DISTILE_NETWORKS_ENGINE_H
#define DISTILE_NETWORKS_ENGINE_H

#include "operator.h"
#include "reference/tensors.h"
#include <array>
#include <distile/distile.hpp>
#include <distile/layers.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace distile::networks {

enum class Mode {
    masked, /**< Every layer computes the pixels of its mask, by its PolyKernel. */
    dense,  /**< The network without masks: the same code with full ones. */
    /** What the last masked step must have computed: plain loops in double precision, and of each result only what the
     * mask selects. The rest of a new tensor is NaN, so that no later layer can use it unseen. */
    reference,
    dry /**< Nothing is computed: the engine notes the operators and their sizes. */
};

/** Ctrl-C. */
class Interrupted : public std::runtime_error {
public:
    Interrupted() : std::runtime_error("interrupted") {
    }
};

/** A float32 tensor [batch, height, width, channels], or a part of one. Copies share its memory, which lives as long as
 * any of them. Tokens have height 1. */
struct Tensor {
    distile_tensor view{};
    std::shared_ptr<float> memory;

    float *at(int32_t n, int32_t y, int32_t x) const {
        return static_cast<float *>(view.data) + n * view.stride_n + y * view.stride_h + x * view.stride_w;
    }
    /** Some of the channels. */
    Tensor part(int32_t first, int32_t count) const;
    /** The pixels as tokens, [batch, 1, height * width, channels]. The tensor is contiguous. */
    Tensor tokens() const;
    /** Tokens as images of the size of `like`. */
    Tensor images(const Tensor &like) const;
    /** Every `step`-th pixel of every `step`-th row. */
    Tensor every(int32_t step) const;
    /** All of it, [batch][height][width][channels]. */
    std::vector<float> values() const;
};

/** Deterministic random numbers, uniform with this standard deviation. The same with every library and compiler. */
void draw(uint64_t seed, float deviation, float *values, size_t count);

/** An operator with weights drawn from a seed, which keep the size of activations times `gain`. Attention has none. */
struct Layer {
    Layer() = default;
    Layer(const Operator &op, uint64_t seed, float gain = 1, float bias = 0)
        : op(op), seed(seed), gain(gain), bias(bias) {
    }

    Operator op;
    uint64_t seed = 0;
    float gain = 1, bias = 0; /**< The mean of the bias. */
    bool has_bias = true;
    mutable distile_kernel *kernel = nullptr; /**< The engine's; null before the first use and without a PolyKernel. */
    mutable Weights weights;
};

/** A layer norm or group norm: its factors and summands, and for a group norm statistics to keep. */
struct Norm {
    Norm() = default;
    Norm(int32_t channels, int32_t groups, float epsilon, uint64_t seed);

    int32_t groups = 0; /**< 0: a layer norm. */
    float epsilon = 1e-5F;
    std::vector<float> gamma, beta;    /**< Empty: 1 and 0. */
    std::vector<float> mean, variance; /**< Fixed statistics, as in batch norm; empty: computed from the input. */
    distile_activation activation = DISTILE_ACTIVATION_NONE;
};

class Engine {
public:
    /** `threads`: 0 takes one for each core. */
    explicit Engine(int32_t threads);
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;
    ~Engine() = default;

    Mode mode = Mode::masked;
    /** Called before every layer, with its number in the step. May throw. */
    std::function<void(int64_t)> before_layer;

    /** Forgets times, and counts memory anew. */
    void start_step();
    /** Milliseconds by type of layer since start_step(). */
    const std::map<std::string, double> &milliseconds() const {
        return milliseconds_;
    }
    /** The bytes of the live tensors, and the most since start_step(). */
    int64_t live_bytes() const;
    int64_t most_bytes() const {
        return most_bytes_;
    }
    /** The bytes of the weights of all layers used so far. */
    int64_t weights_bytes() const {
        return weights_bytes_;
    }
    int32_t threads() const {
        return distile_context_threads(context_.get());
    }
    /** The operators of dry steps, with a size of each. */
    const std::vector<std::pair<Operator, distile_tensor>> &operators() const {
        return operators_;
    }

    /** A new tensor with any values. */
    Tensor make(int32_t batch, int32_t height, int32_t width, int32_t channels);
    Tensor make_like(const Tensor &tensor);
    Mask make_mask() const;
    /** The full mask of a tensor's size. */
    distile_mask *full(const Tensor &tensor);
    /** One byte a pixel, [batch][height][width]. */
    static std::vector<uint8_t> bytes_of(distile_mask *mask, const Tensor &tensor);

    // Masks for the mode: full ones if it is dense; those of the last masked step for a reference.
    /** The mask of a mask unit: the pixels whose channels times `weights` sum to more than the threshold. */
    distile_mask *scored(const Mask &mask, const Tensor &input, const std::vector<float> &weights, float threshold);
    distile_mask *from_bytes(const Mask &mask, const Tensor &tensor, const std::vector<uint8_t> &bytes);
    /** The pixels of `input` that an operator reads for the active pixels of its output. */
    distile_mask *needed_input(const Mask &mask, distile_mask *output, const Operator &op, const Tensor &input);
    /** `output` has the size of `mask`. */
    distile_mask *inverted(const Mask &mask, distile_mask *output);
    /** Sets a mask to the pixels where two tensors differ by more than a threshold, dilated. In a masked step. */
    void mark_difference(const Mask &mask, const Tensor &a, const Tensor &b, float threshold, int32_t radius);
    /** The mask of an edit at the size of a tensor: pooled, or pixels repeated. */
    distile_mask *resized(const Mask &mask, distile_mask *edit, const Tensor &edited, const Tensor &tensor);

    // Layers. Each computes the active pixels of `output`; its others keep their values.
    void run(const Layer &layer, const Tensor &input, const Tensor &output, distile_mask *mask,
             const Tensor *residual = nullptr);
    /** Attention of the active tokens to those of `key_mask`, or to all. */
    void attend(const Layer &layer, const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &output,
                distile_mask *mask, distile_mask *key_mask);
    void normalize(const Norm &norm, const Tensor &input, const Tensor &output, distile_mask *mask);
    /** Computes the statistics of all pixels for later group norms. */
    void keep_statistics(Norm &norm, const Tensor &input);
    void max_pool(const Tensor &input, const Tensor &output, int32_t kernel, int32_t stride, int32_t padding);
    /** The mean of all pixels of each image. */
    void mean_of_pixels(const Tensor &input, const Tensor &output);
    /** Copies, or combines with another tensor of the same shape or of one pixel. */
    void combine(distile_combination combination, const Tensor &input, const Tensor *other, const Tensor &output,
                 distile_mask *mask, distile_activation activation = DISTILE_ACTIVATION_NONE,
                 distile_activation other_activation = DISTILE_ACTIVATION_NONE);
    /** Nearest upsampling by 2. */
    void upsample(const Tensor &input, const Tensor &output, distile_mask *mask);

private:
    class Timed;

    /** Makes the layer's kernel and weights. */
    void prepare(const Layer &layer);
    /** Whether the layer computes by its PolyKernel; notes its operator in a dry step. */
    bool runs_kernel(const Layer &layer, const Tensor &output);

    Context context_;
    std::vector<std::shared_ptr<AlignedFloats>> blocks_; /**< A block is free if no tensor uses it. */
    std::map<std::string, double> milliseconds_;
    int64_t layers_ = 0, most_bytes_ = 0, weights_bytes_ = 0;
    std::map<const distile_polykernel *, Kernel> kernels_;
    std::vector<std::pair<Operator, distile_tensor>> operators_;
    std::map<std::array<int32_t, 3>, Mask> full_;
    Mask none_; /**< Inverse of a full one. */
};

}  // namespace distile::networks

#endif
