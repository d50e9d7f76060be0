/** \file
 * Edits with cached activations, as SIGE makes them: a step computes the edited region of every layer, and keeps the
 * rest of what a pass over the original input computed. Group norms take the statistics of the original.
 */
#ifndef DISTILE_NETWORKS_EDITING_H
#define DISTILE_NETWORKS_EDITING_H

#include "network.h"

namespace distile::networks {

/** A network that computes an edit. Subclasses have graph(), which calls layers by the functions here. */
class EditedNetwork : public Network {
public:
    using Network::Network;

    /** Computes the original input, and keeps all results. */
    void start() override;
    std::vector<Tensor> step() override;
    /** The density of every layer that keeps its result. */
    std::vector<double> densities() const override;
    int64_t kept_bytes() const override;

protected:
    /** Computes the results for an input. Calls the layers in the same order each time. */
    virtual std::vector<Tensor> graph(const Tensor &input) = 0;
    /** Sets the mask of the edit at the resolution of the input. A part of each step. */
    virtual void set_edit_mask(const Mask &mask) = 0;
    /** Takes the inputs before and after the edit; the mask has the size of `edited`. */
    void take_inputs(const Tensor &original, const Tensor &edited);
    const Tensor &original() const {
        return original_;
    }
    const Tensor &edited() const {
        return edited_;
    }

    // Layers that keep their results. Each returns it.
    Tensor run(const Layer &layer, const Tensor &input, const Tensor *residual = nullptr);
    /** The layer, and then the sum with one pixel for each image. */
    Tensor run_shifted(const Layer &layer, const Tensor &input, const Tensor &shift);
    Tensor normalize(Norm &norm, const Tensor &input);
    Tensor combine(distile_combination combination, const Tensor &input, const Tensor *other,
                   distile_activation activation = DISTILE_ACTIVATION_NONE,
                   distile_activation other_activation = DISTILE_ACTIVATION_NONE);
    Tensor upsample(const Tensor &input);
    /** Tensors one after the other by channels. */
    Tensor join(const Tensor &first, const Tensor &second);
    /** Attention of the edited pixels of `query` to all tokens of key and value. Returns images. */
    Tensor attend(const Layer &layer, const Tensor &query, const Tensor &key, const Tensor &value);
    /** A linear layer of vectors [1, 1, count, channels] that the edit does not change: computed whole, not kept. */
    Tensor whole(const Layer &layer, const Tensor &input);

private:
    struct Result {
        Tensor tensor;
        distile_mask *mask;
    };

    /** Where the next layer writes, of the size of an input through this operator, and what it computes. */
    Result result(int32_t batch, int32_t height, int32_t width, int32_t channels);
    Result result_of(const Layer &layer, const Tensor &input);
    distile_mask *mask_at(const Tensor &tensor);
    distile_mask *token_mask_at(const Tensor &tensor);

    Tensor original_, edited_;
    Mask edit_;
    std::vector<Tensor> kept_;   /**< Results of layers, in the order of the graph. */
    std::vector<Tensor> copies_; /**< Copies of the results for the original, for a reference step. */
    std::vector<double> densities_;
    size_t next_ = 0;
    bool keeps_ = false; /**< The pass over the original. */
    struct Resized {
        Mask pixels, tokens;
        bool is_set = false, has_tokens = false;
    };
    std::map<std::pair<int32_t, int32_t>, Resized> resized_; /**< The edit by height and width. */
};

}  // namespace distile::networks

#endif
