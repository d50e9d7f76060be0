/** \file
 * The space of code that multiplies with the nonzero weights alone (kernels/cpu/nonzeros.h).
 *
 * A task stages a block of pixels, in `vectors` vectors. Either its pixels lie anywhere, and a tile is one of them; or
 * a tile is the block, one vector wide, and its pixels share the input that they read.
 */
#ifndef DISTILE_SCHEDULES_NONZEROS_SPACE_H
#define DISTILE_SCHEDULES_NONZEROS_SPACE_H

#include "schedules/space.h"

namespace distile {

/** Whether a tile is a block of pixels that share what they read. */
inline bool is_window(const Theta &theta) {
    return theta.at("tile_h") * theta.at("tile_w") > 1;
}

const Space &nonzeros_space();

}  // namespace distile

#endif
