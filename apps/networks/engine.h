/** \file
 * What runs the layers of a network: an Engine has the device, the tensors, the times and the memory, and computes
 * every layer in one of four ways. A network is thus written once.
 */
#ifndef DISTILE_NETWORKS_ENGINE_H
#define DISTILE_NETWORKS_ENGINE_H

#include "operator.h"
#include "reference/tensors.h"
#include "stage.h"
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
    Layer(const Operator &op, uint64_t seed, float gain = 1) : op(op), seed(seed), gain(gain) {
    }

    Operator op;
    uint64_t seed = 0;
    float gain = 1;
    mutable distile_kernel *kernel = nullptr; /**< The engine's; null before the first use and without a PolyKernel. */
    mutable Weights weights;
    mutable StageWeights stage_weights; /**< Empty before the first use in a stage. */
};

/** A layer norm: its factors and summands, drawn from a seed. */
struct Norm {
    Norm() = default;
    Norm(int32_t channels, float epsilon, uint64_t seed);

    float epsilon = 1e-5F;
    std::vector<float> gamma, beta;
};

class Engine {
public:
    /** `threads`: 0 takes one for each core. With `stages`, convolutions and the masks between them run together,
     * before anything else needs what they write: see finish(). */
    explicit Engine(int32_t threads, bool stages = false);
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;
    ~Engine() = default;

    Mode mode = Mode::masked;
    /** Called before every layer, with its number in the step. May throw. */
    std::function<void(int64_t)> before_layer;

    /** Runs what has not run yet of a step. Call it before you read what a step has written. */
    void finish();
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

    // Layers. Each computes the active pixels of `output`; its others keep their values.
    void run(const Layer &layer, const Tensor &input, const Tensor &output, distile_mask *mask,
             const Tensor *residual = nullptr);
    /** Attention of the active tokens to each other. */
    void attend(const Layer &layer, const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &output,
                distile_mask *mask);
    void normalize(const Norm &norm, const Tensor &input, const Tensor &output, distile_mask *mask);
    void max_pool(const Tensor &input, const Tensor &output, int32_t kernel, int32_t stride, int32_t padding);
    /** The mean of all pixels of each image. */
    void mean_of_pixels(const Tensor &input, const Tensor &output);
    /** Copies, through an activation. */
    void copy(const Tensor &input, const Tensor &output, distile_mask *mask,
              distile_activation activation = DISTILE_ACTIVATION_NONE);

private:
    class Timed;

    /** Whether a layer joins the stage. */
    bool is_staged(const Layer &layer) const;
    void stage(const Layer &layer, const Tensor &input, const Tensor &output, distile_mask *mask,
               const Tensor *residual);
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
    Mask none_;                    /**< Inverse of a full one. */
    std::unique_ptr<Stage> stage_; /**< Null without stages. */
};

}  // namespace distile::networks

#endif
