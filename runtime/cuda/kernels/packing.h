/** \file
 * Shared by the host and packing.cu.
 */
#ifndef DISTILE_CUDA_KERNELS_PACKING_H
#define DISTILE_CUDA_KERNELS_PACKING_H

#include "runtime/cuda/kernels/pixels.h"

namespace distile {

/** The active pixels of a mask, in order. */
struct PixelList {
    const uint32_t *xy, *images, *count;
};

/** Copies between the listed pixels of a tensor and the first pixels of a packed one. */
struct Packing {
    PixelView pixels, packed;  ///< In units.
    PixelList list;
    Divisor width, height;  ///< The packed tensor's size.
    uint32_t capacity;      ///< Its pixels.
    uint32_t units;         ///< Per pixel.
    uint32_t team;          ///< Lanes per pixel: a power of two up to 32.
    int32_t zero;           ///< 1: listed pixels beyond the capacity become 0 when unpacked; 0: they stay.
};

}  // namespace distile

#endif
