/** \file
 * How kernels of a GPU map rows of bits through a window.
 */
#ifndef DISTILE_BIT_TRANSFER_H
#define DISTILE_BIT_TRANSFER_H

#include "runtime/gpu/divisor.h"

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

/** The steps for both axes. */
struct BitSteps {
    BitColumn column;
    BitRow row;
};

}  // namespace distile

#endif
