/** \file
 * Attention of listed pixels to listed pixels of their image, of any shape, in float32: what stages compute on a CPU.
 */
#ifndef DISTILE_CPU_LISTED_ATTENTION_H
#define DISTILE_CPU_LISTED_ATTENTION_H

#include "runtime/cpu/products/listed_convolution.h"

namespace distile {

/** output(row) = the sum over the keys of its image of softmax(scale * query(row) . key) * value(key), in each head by
 * itself. The channels of one head come after those of the other. */
struct ListedAttention {
    PixelMemory query, key, value, output;
    int32_t heads, channels;  ///< Channels of a head.
    float scale;              ///< Above 0.
    ListedPixels rows, keys;  ///< In the order of their images; those with rows have keys.
};

/** Computes it on the context's threads. */
void run_attention(distile_context &context, const PixelProducts &products, const ListedAttention &attention);

}  // namespace distile

#endif
