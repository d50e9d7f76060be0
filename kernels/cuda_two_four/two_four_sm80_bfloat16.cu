// Layers with weights of the pattern 2:4 in bfloat16, by tensor cores of compute capability 8.0 and later.
#include "kernels/cuda_two_four/sm80.cuh"

namespace distile::cuda_two_four {

#define DISTILE_KERNEL(pixels, channels) DISTILE_TWO_FOUR_SM80_KERNEL(bfloat16, Bfloat16, pixels, channels)
DISTILE_TWO_FOUR_SM80_BLOCKS(DISTILE_KERNEL)
#undef DISTILE_KERNEL

}  // namespace distile::cuda_two_four
