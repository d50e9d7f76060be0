/** \file
 * Pixel updates for the kernels in kernels/pixels.cu.
 */
#ifndef DISTILE_CUDA_PIXEL_UPDATE_H
#define DISTILE_CUDA_PIXEL_UPDATE_H

#include "runtime/cuda/kernels/pixels.h"
#include "runtime/gpu/views.h"
#include <distile/distile.h>

namespace distile {

/** A tensor's pixels in elements. */
inline PixelView view_of(const distile_tensor &tensor) {
    return {tensor.data, tensor.stride_n, tensor.stride_h, tensor.stride_w};
}

/** Pixels in units of 16 bytes, or of an element if some tensor's pixels do not start at multiples of that. */
struct PixelUnits {
    PixelUnits(const distile_tensor &tensor, const distile_tensor *other);
    PixelView view_of(const distile_tensor &tensor) const;

    int64_t lanes;      ///< Elements per unit.
    int32_t unit;       ///< Bytes: 1, 2, 4 or 16.
    int32_t per_pixel;  ///< Units.
    uint32_t team;      ///< Lanes per pixel: a power of two up to 32.
};

/** How often each source pixel is repeated. */
struct Scale {
    int32_t h, w;
};

/** An update of a tensor's pixels: copies from `from`, unless null, and with `zero` zeros the others, whose bytes
 * become `byte`. */
PixelUpdate make_update(const distile_tensor &output, const distile_tensor *from, const Scale &scale, bool zero,
                        uint8_t byte = 0);

/** The number of blocks to launch for an update, whose warps loop. */
uint32_t blocks_for(const PixelUpdate &update, uint32_t most_blocks);

}  // namespace distile

#endif
