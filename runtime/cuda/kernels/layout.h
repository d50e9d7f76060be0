/** \file
 * Shared by the host and layout.cu.
 */
#ifndef DISTILE_CUDA_KERNELS_LAYOUT_H
#define DISTILE_CUDA_KERNELS_LAYOUT_H

#include "common.h"

namespace distile {

constexpr uint32_t most_tile_channels = 32;
constexpr uint32_t tile_elements = 1024;  ///< Of a block, which converts a tile of pixels and channels.

/** A tensor in both layouts; contiguous rows may be joined into one row per image. */
struct Conversion {
    void *planes, *pixels;
    int64_t plane_stride_n, plane_stride_c, plane_stride_h;
    int64_t pixel_stride_n, pixel_stride_h, pixel_stride_w;
    uint32_t columns, channels;
    Divisor column_tiles, channel_tiles, rows;
    uint32_t log_channels;  ///< Of a tile: 2^log_channels of them, and so many columns that tile_elements are full.
};

}  // namespace distile

#endif
