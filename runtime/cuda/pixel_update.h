/** \file
 * Pixel updates for the kernels in kernels/pixels.cu.
 */
#ifndef DISTILE_CUDA_PIXEL_UPDATE_H
#define DISTILE_CUDA_PIXEL_UPDATE_H

#include "kernels/pixels.h"
#include "views.h"
#include <distile/distile.h>

namespace distile {

/** How often each source pixel is repeated. */
struct Scale {
    int32_t h, w;
};

/** An update of a tensor's pixels: copies from `from`, unless null, and with `zero` zeros the others. */
PixelUpdate make_update(const distile_tensor &output, const distile_tensor *from, const Scale &scale, bool zero);

/** The number of blocks to launch for an update, whose warps loop. */
uint32_t blocks_for(const PixelUpdate &update, uint32_t most_blocks);

}  // namespace distile

#endif
