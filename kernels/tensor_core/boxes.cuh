/** \file
 * Input that is copied in boxes: all that a tile reads at one position of the kernel, zeros beyond the input included.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_BOXES_CUH
#define DISTILE_CUDA_TENSOR_CORE_BOXES_CUH

#include "kernels/tensor_core/ptx.cuh"
#include "kernels/tensor_core/rows.cuh"
#include "kernels/tensor_core/types.cuh"

namespace distile::tensor_core {

/** The tiles of a block, each a box of shared memory. */
template<class Op, int BlockPixels> class Boxes {
    static constexpr int tile_pixels = Rows<Op>::tile_pixels;

public:
    /** Whether a block's rows are whole boxes, whose rows of 128 bytes lie as tensor cores read them. Smaller tiles
     * would take more copies than their rows. Hardware fills boxes with zeros, not with zero points. */
    static constexpr bool possible = !is_quantized<Op> && tile_pixels >= 16 && tile_pixels % 8 == 0 &&
                                     BlockPixels % tile_pixels == 0 && Op::tile_h <= 16 && Op::tile_w <= 16 &&
                                     Op::stride_h <= 8 && Op::stride_w <= 8 &&
                                     Op::read_channels % ReductionPlace<Op>::step_channels == 0;

    __device__ Boxes(const Arguments &arguments, const TensorMap &map, const Rows<Op> &rows, uint32_t first_row,
                     int32_t first_channel)
        : map_(&map), first_channel_(first_channel) {
#pragma unroll
        for (int i = 0; i < count; i++) {
            const uint32_t row = first_row + i * tile_pixels;
            // The box is zero there.
            corners_[i] = {beyond, beyond, 0};
            if (row < rows.count()) {
                const Pixel pixel = rows.pixel(row, rows.fetch(row));
                corners_[i] = {pixel.x * Op::stride_w - Op::pad_left - arguments.first_column,
                               pixel.y * Op::stride_h - Op::pad_top - arguments.first_row, pixel.image};
            }
        }
    }

    /** Copies a step of the reduction to shared memory, BlockPixels x 128 bytes. */
    __device__ void copy(const ReductionPlace<Op> &place, uint32_t to, uint32_t barrier) const {
#pragma unroll
        for (int i = 0; i < count; i++) {
            copy_box(to + i * (tile_pixels * 128), map_,
                     first_channel_ + place.block * ReductionPlace<Op>::step_channels,
                     corners_[i].x + place.column * Op::dilation_w, corners_[i].y + place.row * Op::dilation_h,
                     corners_[i].image, barrier);
        }
    }

private:
    static constexpr int count = BlockPixels / tile_pixels < 1 ? 1 : BlockPixels / tile_pixels;
    static constexpr int32_t beyond = -(1 << 20);

    const TensorMap *map_;
    int32_t first_channel_;
    Pixel corners_[count];
};

}  // namespace distile::tensor_core

#endif
