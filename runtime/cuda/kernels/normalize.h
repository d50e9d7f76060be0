/** \file
 * Shared by the host and normalize.cu.
 */
#ifndef DISTILE_CUDA_KERNELS_NORMALIZE_H
#define DISTILE_CUDA_KERNELS_NORMALIZE_H

#include "runtime/cuda/kernels/packing.h"

namespace distile {

constexpr uint32_t normalized_bytes = 16;  ///< The bytes of a vector, if a pixel is read and written in vectors.
constexpr uint32_t vectors_of_thread = 4;  ///< The most vectors that a thread keeps in registers.

/** The normalization of the listed pixels. */
struct NormalizedPixels {
    PixelView from, to;  ///< In elements.
    PixelList list;
    const float *gamma, *beta;  ///< Null: 1 and 0.
    uint32_t channels;
    uint32_t team;  ///< Threads per pixel: a power of two from a warp to a block.
    int32_t centred;
    float epsilon;
};

}  // namespace distile

#endif
