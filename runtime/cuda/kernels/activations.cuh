/** \file
 * Activations of float32 values.
 */
#ifndef DISTILE_CUDA_KERNELS_ACTIVATIONS_CUH
#define DISTILE_CUDA_KERNELS_ACTIVATIONS_CUH

#include "../../include/distile/layers.h"
#include <cstdint>

namespace distile {

/** NaN stays NaN. Not inlined, because vectors would make much code of it, which the driver compiles. */
static __noinline__ __device__ float activate_one(float x, distile_activation activation) {
    switch (activation) {
    case DISTILE_ACTIVATION_RELU:
        return x < 0 ? 0 : x;
    case DISTILE_ACTIVATION_RELU6:
        return x < 0 ? 0 : x > 6 ? 6 : x;
    case DISTILE_ACTIVATION_SILU:
        return x / (1 + expf(-x));
    case DISTILE_ACTIVATION_GELU:
        return .5f * x * (1 + erff(x * .70710678f));
    case DISTILE_ACTIVATION_SIGMOID:
        return 1 / (1 + expf(-x));
    case DISTILE_ACTIVATION_HARDSIGMOID:
        return x < -3 ? 0 : x > 3 ? 1 : (x + 3) / 6;
    case DISTILE_ACTIVATION_HARDSWISH:
        // At minus infinity 0 * x is NaN, as in PyTorch.
        return x * ((x < -3 ? 0 : x > 3 ? 6 : x + 3) / 6);
    case DISTILE_ACTIVATION_NONE:
        break;
    }
    return x;
}

template<uint32_t size> __device__ void activate(distile_activation activation, float (&values)[size]) {
    if (activation != DISTILE_ACTIVATION_NONE) {
#pragma unroll
        for (uint32_t i = 0; i < size; i++) {
            values[i] = activate_one(values[i], activation);
        }
    }
}

}  // namespace distile

#endif
