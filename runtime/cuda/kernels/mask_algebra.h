/** \file
 * Shared by the host and mask_algebra.cu.
 */
#ifndef DISTILE_CUDA_KERNELS_MASK_ALGEBRA_H
#define DISTILE_CUDA_KERNELS_MASK_ALGEBRA_H

#include "common.h"

namespace distile {

constexpr uint32_t most_steps = 16;  ///< Enough to copy a bit to 65535 positions.

/** How the bits of a row move: they are spread `spread` positions apart, copied up by each of the distances in turn,
 * moved up by `shift`, which may be negative, and copied down. Then every `take`-th bit goes to the result. */
struct BitRow {
    int32_t from_bits, to_bits;  ///< Bits that count.
    int32_t words;               ///< Words of a row in progress.
    int32_t spread, shift, take;
    int32_t num_up, num_down;
    int32_t up[most_steps], down[most_steps];
};

/** The rows that row y of the result unites: for each tap, with t = y * scale + start + tap * dilation, the rows from
 * (t - before) / divisor to (t + behind) / divisor. */
struct BitColumn {
    int32_t taps, dilation, scale, start, before, behind;
    Divisor divisor;
};

/** Maps a mask through a window. A team of threads, a power of two, makes one row. */
struct BitTransfer {
    DeviceBits from;
    BitColumn column;
    BitRow row;
    Divisor height;  ///< The result's.
    uint32_t num_rows, team;
    int32_t words_per_row;  ///< The result's.
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
