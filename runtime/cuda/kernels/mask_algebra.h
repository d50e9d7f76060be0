/** \file
 * Shared by the host and mask_algebra.cu.
 */
#ifndef DISTILE_CUDA_KERNELS_MASK_ALGEBRA_H
#define DISTILE_CUDA_KERNELS_MASK_ALGEBRA_H

#include "runtime/cuda/kernels/common.h"
#include "runtime/gpu/bit_transfer.h"

namespace distile {

/** Maps a mask through a window. A team of threads, a power of two, makes one row. */
struct BitTransfer {
    DeviceBits from;
    BitColumn column;
    BitRow row;
    Divisor height;  ///< The result's.
    uint32_t num_rows, team;
    int32_t words_per_row, width;  ///< The result's.
    MaskBytes mirror;
};

/** How to combine the bits of two masks, or of the first alone. */
enum class BitOperation : int32_t { Unite, Intersect, Subtract, Invert };

struct BitCombination {
    const uint32_t *a, *b;
    BitOperation how;
    Divisor words_per_row;
    uint32_t num_words, last_bits;  ///< last_bits: the bits of a row's last word that are pixels.
};

}  // namespace distile

#endif
