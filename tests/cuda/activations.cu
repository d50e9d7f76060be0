// Every row of the table of activations, applied to an array: as kernels of layers and of dot products compute them,
// and as those for tensor cores do.
#include "kernels/tensor_core/activation.cuh"
#include "runtime/cuda/kernels/activations.cuh"

using distile::tensor_core::Activation;

extern "C" __global__ void activate_values(int activation, float slope, const float *from, float *to, int count) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) {
        to[i] = distile::activate_one(from[i], {static_cast<distile_activation>(activation), slope});
    }
}

extern "C" __global__ void activate_for_tensor_cores(int activation, float slope, const float *from, float *to,
                                                     int count) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) {
        return;
    }
    switch (activation) {
#define ROW(number, name, NAME, value, gradient)                                                                       \
    case number:                                                                                                       \
        to[i] = distile::tensor_core::activate<Activation::name>(from[i], slope);                                      \
        break;
        DISTILE_ACTIVATIONS(ROW)
    }
}
