/** \file
 * Elements of any type, and vectors of them.
 */
#ifndef DISTILE_CUDA_KERNELS_ELEMENTS_CUH
#define DISTILE_CUDA_KERNELS_ELEMENTS_CUH

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace distile {

inline __device__ float to_float(float value) {
    return value;
}
inline __device__ float to_float(__half value) {
    return __half2float(value);
}
inline __device__ float to_float(__nv_bfloat16 value) {
    return __bfloat162float(value);
}

// To the nearest, ties to even.
inline __device__ void from_float(float value, float &to) {
    to = value;
}
inline __device__ void from_float(float value, __half &to) {
    to = __float2half_rn(value);
}
inline __device__ void from_float(float value, __nv_bfloat16 &to) {
    to = __float2bfloat16_rn(value);
}

/** The elements read or written at once. */
template<typename Element, uint32_t size> struct alignas(size * sizeof(Element)) Vector { Element elements[size]; };

}  // namespace distile

#endif
