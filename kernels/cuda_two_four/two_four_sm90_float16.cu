// Layers with weights of the pattern 2:4 in float16, by tensor cores of compute capability 9.0.
#include "kernels/cuda_two_four/sm90.cuh"

namespace distile::cuda_two_four {

#define DISTILE_KERNEL(pixels, channels) DISTILE_TWO_FOUR_SM90_KERNEL(float16, Float16, pixels, channels)
DISTILE_TWO_FOUR_SM90_BLOCKS(DISTILE_KERNEL)
#undef DISTILE_KERNEL

}  // namespace distile::cuda_two_four
