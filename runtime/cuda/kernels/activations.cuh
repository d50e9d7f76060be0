/** \file
 * Activations of float32 values.
 */
#ifndef DISTILE_CUDA_KERNELS_ACTIVATIONS_CUH
#define DISTILE_CUDA_KERNELS_ACTIVATIONS_CUH

#include "kernels/tensor_core/activation.cuh"
#include "runtime/base/activation.h"
#include <cstdint>

namespace distile {

/** NaN stays NaN. Not inlined, because vectors would make much code of it, which the driver compiles. */
static __noinline__ __device__ float activate_one(float x, Activation activation) {
    return activated(activation.function, x, activation.slope);
}

template<uint32_t size> __device__ void activate(Activation activation, float (&values)[size]) {
    if (activation.function != DISTILE_ACTIVATION_NONE) {
#pragma unroll
        for (uint32_t i = 0; i < size; i++) {
            values[i] = activate_one(values[i], activation);
        }
    }
}

}  // namespace distile

#endif
