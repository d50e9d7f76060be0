/** \file
 * Weights in the canonical layout of the CPU kernels, "cpu-o16": output channels in blocks of 16, each block
 * [kernel row][kernel column][input channel of the group][output channel in block], the last one padded with zeros. Of
 * operators with phases the rows and columns are the taps of all phases, one phase after the other (polyphase.h).
 */
#ifndef DISTILE_WEIGHTS_H
#define DISTILE_WEIGHTS_H

#include "polyphase.h"
#include <distile/polykernel.h>
#include <optional>
#include <string>
#include <vector>

namespace distile {

/** The output channels of one block at one position of the filter; aligned for any vector load. */
struct alignas(64) ChannelBlock {
    float channels[DISTILE_CPU_CHANNEL_BLOCK] = {};
};

/** Checks the arguments of the API function `call`, which packs weights. */
distile_status check_weights(const distile_kernel &kernel, const char *call, const distile_weights_source *source,
                             const void *weights);
/** Packs a source into blocks of `block` output channels, each [kernel row][kernel column][input channel of
 * the group][output channel in block]. Whatever pads the last block is left as it is. */
distile_status pack_weights(const distile_kernel &kernel, const char *call, const distile_weights_source &source,
                            size_t block, float *filter, float *bias);

}  // namespace distile

struct distile_weights {
    distile_dtype dtype;
    std::string layout;
    int32_t in_channels, out_channels, groups, kernel_h, kernel_w;
    std::optional<distile::Polyphase> phases; /**< In whose order the taps stand. */
    int32_t rows, columns;                    /**< Of taps: the kernel's, or those of all phases. */
    std::vector<distile::ChannelBlock> filter, bias;

    /** True if the kernel reads weights of this shape, data type and layout, if not of these phases. */
    bool fit(const distile_polykernel &polykernel) const;
    int32_t num_blocks() const {
        return (out_channels + DISTILE_CPU_CHANNEL_BLOCK - 1) / DISTILE_CPU_CHANNEL_BLOCK;
    }
};

#endif
