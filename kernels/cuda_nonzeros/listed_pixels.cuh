/** \file
 * The output pixels that a list of tiles names, for kernels that gather them.
 */
#ifndef DISTILE_CUDA_NONZEROS_LISTED_PIXELS_CUH
#define DISTILE_CUDA_NONZEROS_LISTED_PIXELS_CUH

#include "kernels/cuda_tensor.h"
#include <cstdint>

namespace distile::cuda_nonzeros {

/** The output pixel of a row of the matrix product, at x | y << 16; in image -1 if it is not computed. */
struct Pixel {
    uint32_t xy;
    int32_t image;

    __device__ bool is_there() const {
        return image >= 0;
    }
    __device__ int32_t y() const {
        return static_cast<int32_t>(xy >> 16);
    }
    __device__ int32_t x() const {
        return static_cast<int32_t>(xy & 0xffff);
    }
    /** Where it is in a tensor of the output's shape. */
    __device__ char *in(const CudaTensor &tensor) const {
        return tensor.data + image * tensor.stride_n + int64_t{y()} * tensor.stride_h + int64_t{x()} * tensor.stride_w;
    }
};

/** An entry of the list of tiles, and a pixel of the tile. */
struct Listed {
    uint32_t tile, first, down, right;
    int32_t image;
};
/** Reads before the number of tiles is known. Behind the last, anything may stand. */
template<class Arguments> __device__ Listed listed_of(const Arguments &a, uint32_t index) {
    const uint32_t tile_pixels = a.rows.tile * a.columns.tile;
    Listed listed{index, 0, 0, 0, -1};
    if (tile_pixels > 1) {
        listed.tile = index / tile_pixels;
        listed.down = index % tile_pixels / a.columns.tile;
        listed.right = index % tile_pixels % a.columns.tile;
    }
    if (listed.tile < static_cast<uint32_t>(a.capacity)) {
        listed.first = a.xy[listed.tile];
        listed.image = static_cast<int32_t>(a.xy[a.capacity + listed.tile]);
    }
    return listed;
}
template<class Arguments> __device__ Pixel pixel_of(const Arguments &a, const Listed &listed, uint32_t count) {
    const uint32_t y = (listed.first >> 16) + listed.down, x = (listed.first & 0xffff) + listed.right;
    const bool is_there =
        listed.tile < count && y < static_cast<uint32_t>(a.rows.extent) && x < static_cast<uint32_t>(a.columns.extent);
    return {y << 16 | x, is_there ? listed.image : -1};
}

/** A word of the mask's bits in which that of a pixel is; all of them, if all pixels of tiles are stored. */
template<class Arguments> __device__ uint32_t word_of(const Arguments &a, const Pixel &pixel) {
    const int64_t line = int64_t{pixel.image} * a.rows.extent + pixel.y();
    return pixel.is_there() && a.store_tiles == 0 ? a.bits[line * a.words_per_row + pixel.x() / 32] : 0xffffffff;
}

}  // namespace distile::cuda_nonzeros

#endif
