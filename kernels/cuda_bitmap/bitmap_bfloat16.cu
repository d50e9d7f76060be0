// Linear layers with pruned weights in bfloat16.
#include "kernels/cuda_bitmap/bitmap.cuh"

namespace distile::cuda_bitmap {

#define DISTILE_KERNEL(pixels) DISTILE_CUDA_BITMAP_KERNEL(bfloat16, Bfloat16, pixels)
DISTILE_CUDA_BITMAP_PIXELS(DISTILE_KERNEL)
#undef DISTILE_KERNEL

}  // namespace distile::cuda_bitmap
