/** \file
 * How kernels for NVIDIA GPUs that are no code from Halide see an activation. Shared by the host and the device.
 */
#ifndef DISTILE_KERNELS_CUDA_TENSOR_H
#define DISTILE_KERNELS_CUDA_TENSOR_H

#include "facts/type_functions.h"
#include "kernels/call.h"
#include <cstdint>

namespace distile {

/** An activation, channels last. Distances in bytes. */
struct CudaTensor {
    char *data;  ///< Pixel (0, 0) of image 0. A border lies before it.
    int64_t stride_n;
    int32_t stride_h, stride_w;
};

inline int64_t bytes_of_element(const distile_array &array) {
    return element_bytes(array.dtype);
}

inline CudaTensor cuda_tensor_of(const distile_array &array) {
    constexpr int x = 1, y = 2, image = 3;
    const auto stride = [&](int dimension) { return array.dim[dimension].stride * bytes_of_element(array); };
    // The array begins in its border.
    return {static_cast<char *>(array.data) - array.dim[x].min * stride(x) - array.dim[y].min * stride(y),
            stride(image), static_cast<int32_t>(stride(y)), static_cast<int32_t>(stride(x))};
}

/** Whether every pixel begins at a multiple of `bytes`. */
inline bool is_aligned(const CudaTensor &tensor, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(tensor.data) % bytes == 0 && tensor.stride_n % bytes == 0 &&
           tensor.stride_h % bytes == 0 && tensor.stride_w % bytes == 0;
}

}  // namespace distile

#endif
