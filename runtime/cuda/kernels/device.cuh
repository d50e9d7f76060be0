/** \file
 * Helpers for all kernels.
 */
#ifndef DISTILE_CUDA_KERNELS_DEVICE_CUH
#define DISTILE_CUDA_KERNELS_DEVICE_CUH

#include "runtime/cuda/kernels/common.h"

namespace distile {

constexpr uint32_t all_lanes = ~0u;

inline __device__ uint32_t lane() {
    return threadIdx.x % 32;
}

inline __device__ uint32_t divide(uint32_t number, const Divisor &by) {
    return by.value == 1 ? number : __umulhi(number, by.multiplier) >> by.shift;
}

inline __device__ uint32_t warp_sum(uint32_t value) {
    for (int step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(all_lanes, value, step);
    }
    return value;
}

/** The bytes of a row of a mask. */
inline __device__ uint8_t *row_of(const MaskBytes &mask, uint32_t image, uint32_t y) {
    return mask.bytes + image * mask.stride_n + y * mask.stride_h;
}

/** Lets the next kernel of the stream start, and then waits until all earlier work is done. A kernel that may itself
 * start early must begin with it: nothing else keeps it from memory that earlier work still uses. The next kernel does
 * the same, so it cannot run ahead of this wait. Does nothing before compute capability 9.0. */
inline __device__ void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace distile

#endif
