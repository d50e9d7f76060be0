/** \file
 * Shared by the host and layout.cu.
 */
#ifndef DISTILE_CUDA_KERNELS_LAYOUT_H
#define DISTILE_CUDA_KERNELS_LAYOUT_H

#include "runtime/cuda/kernels/common.h"

namespace distile {

constexpr uint32_t most_tile_channels = 32;
constexpr uint32_t tile_elements = 1024;  ///< Elements of the tile that a block converts.

/** A tensor in both layouts; contiguous rows may be joined into one row per image. */
struct Conversion {
    void *planes, *pixels;
    int64_t plane_stride_n, plane_stride_c, plane_stride_h;
    int64_t pixel_stride_n, pixel_stride_h, pixel_stride_w;
    uint32_t columns, channels;
    Divisor column_tiles, channel_tiles, rows;
    uint32_t log_channels;  ///< A tile has 2^log_channels channels and as many columns as fill tile_elements.
};

}  // namespace distile

#endif
