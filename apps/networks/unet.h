/** \file
 * The UNets of diffusion models: what the DDPM UNet and that of Stable Diffusion share.
 */
#ifndef DISTILE_NETWORKS_UNET_H
#define DISTILE_NETWORKS_UNET_H

#include "editing.h"

namespace distile::networks {

/** x + conv(norm(conv(norm(x)) + time)); each norm ends in a silu. */
struct ResBlock {
    Norm norm1, norm2;
    Layer conv1, conv2, time, shortcut;
    bool changes_channels = false;
};

class UNet : public EditedNetwork {
public:
    using EditedNetwork::EditedNetwork;

protected:
    struct Shape {
        int32_t image_channels, channels;
        std::vector<int32_t> multiples;  /**< The factor of the channels, by level. */
        std::vector<bool> has_attention; /**< By level. */
        float epsilon;
        Operator (*down)(int32_t channels); /**< From a level to the next. */
    };

    /** Makes the layers; calls add_attention() for each block with attention, in the order in which they run. */
    void build(const Shape &shape);
    virtual void add_attention(int32_t channels) = 0;
    /** The attention block with this number. */
    virtual Tensor attended(size_t number, const Tensor &x) = 0;
    std::vector<Tensor> graph(const Tensor &input) override;
    Norm group_norm(int32_t channels, distile_activation activation = DISTILE_ACTIVATION_SILU);

private:
    struct Level {
        std::vector<ResBlock> blocks;
        bool has_attention = false, has_change = false;
        Layer change; /**< To the resolution of the next level. */
    };

    void add_block(Level &level, int32_t in, int32_t out);
    Tensor run_block(ResBlock &block, const Tensor &x, const Tensor &time);
    /** The vector that says how much noise the input has. */
    Tensor embedded_time();

    float epsilon_ = 0;
    Layer time1_, time2_, enter_, leave_;
    std::vector<Level> down_, up_;
    Level middle_;
    Norm norm_;
};

}  // namespace distile::networks

#endif
