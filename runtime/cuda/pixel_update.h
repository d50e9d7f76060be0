/** \file
 * Updates of pixels, as the kernels in kernels/pixels.cu take them.
 */
#ifndef DISTILE_CUDA_PIXEL_UPDATE_H
#define DISTILE_CUDA_PIXEL_UPDATE_H

#include "kernels/pixels.h"
#include <cstddef>
#include <distile/distile.h>

namespace distile {

/** Whether the pixels of a tensor begin and end at multiples of some bytes. */
bool is_in_units(const distile_tensor &tensor, size_t bytes);

/** How often each pixel of the tensor that is copied from is repeated. */
struct Scale {
    int32_t h, w;
};

/** An update of a tensor's pixels: copies from another tensor, unless that is null, and zeros if asked for. */
PixelUpdate make_update(const distile_tensor &output, const distile_tensor *from, const Scale &scale, bool zero);

/** The blocks of a launch for an update, whose warps go round. */
uint32_t blocks_for(const PixelUpdate &update, uint32_t most_blocks);

}  // namespace distile

#endif
