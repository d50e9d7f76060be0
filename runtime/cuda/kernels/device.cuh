/** \file
 * Helpers for all kernels.
 */
#ifndef DISTILE_CUDA_KERNELS_DEVICE_CUH
#define DISTILE_CUDA_KERNELS_DEVICE_CUH

#include "common.h"

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

/** Clears the states of the grids that will be listed. */
inline __device__ void clear_states(const TileGrids &grids, uint32_t num_grids) {
    for (uint32_t i = 0; i < num_grids; i++) {
        const TileGrid &grid = grids.grids[i];
        for (uint32_t j = blockIdx.x * blockDim.x + threadIdx.x; j < grid.blocks; j += gridDim.x * blockDim.x) {
            grid.states[j] = 0;
        }
    }
}

}  // namespace distile

#endif
