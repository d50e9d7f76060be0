// Linear layers with pruned weights in float16.
#include "kernels/cuda_bitmap/bitmap.cuh"

namespace distile::cuda_bitmap {

#define DISTILE_KERNEL(pixels) DISTILE_CUDA_BITMAP_KERNEL(float16, Float16, pixels)
DISTILE_CUDA_BITMAP_PIXELS(DISTILE_KERNEL)
#undef DISTILE_KERNEL

}  // namespace distile::cuda_bitmap
