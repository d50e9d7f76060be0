/** \file
 * Listed pixels in vectors of elements, for kernels that compute in float32.
 */
#ifndef DISTILE_CUDA_KERNELS_LAYER_PIXELS_CUH
#define DISTILE_CUDA_KERNELS_LAYER_PIXELS_CUH

#include "runtime/cuda/kernels/device.cuh"
#include "runtime/cuda/kernels/elements.cuh"
#include "runtime/cuda/kernels/layers.h"

namespace distile {

template<typename Element>
__device__ Element *find_pixel(const PixelView &view, uint32_t image, uint32_t y, uint32_t x) {
    return static_cast<Element *>(view.data) + image * view.stride_n + y * view.stride_h + x * view.stride_w;
}

template<typename Element, uint32_t size> __device__ void load(const Element *from, float (&to)[size]) {
    const Vector<Element, size> vector = *reinterpret_cast<const Vector<Element, size> *>(from);
#pragma unroll
    for (uint32_t i = 0; i < size; i++) {
        to[i] = to_float(vector.elements[i]);
    }
}

template<typename Element, uint32_t size> __device__ void store(const float (&from)[size], Element *to) {
    Vector<Element, size> vector;
#pragma unroll
    for (uint32_t i = 0; i < size; i++) {
        from_float(from[i], vector.elements[i]);
    }
    *reinterpret_cast<Vector<Element, size> *>(to) = vector;
}

/** Calls visit(image, y, x, channel) for every vector of every listed pixel. A pixel has a team of lanes. */
template<uint32_t size, typename Visit>
__device__ void for_each_vector(const PixelList &list, uint32_t vectors, uint32_t team, const Visit &visit) {
    const uint32_t teams = block_threads / team, rank = threadIdx.x & (team - 1), count = *list.count;
    for (uint32_t place = blockIdx.x * teams + threadIdx.x / team; place < count; place += gridDim.x * teams) {
        const uint32_t xy = list.xy[place], image = list.images[place];
        for (uint32_t vector = rank; vector < vectors; vector += team) {
            visit(image, xy >> 16, xy & 0xffff, vector * size);
        }
    }
}

/** NaN if either is. */
inline __device__ float larger(float a, float b) {
    return a > b || isnan(a) ? a : b;
}

}  // namespace distile

/** Kernels for a type, by its number and name, in vectors and element by element: `function`<Element, size>(Arguments).
 */
#define DISTILE_LAYER_KERNELS(kernel, number, type, Arguments, function)                                               \
    DISTILE_LAYER_KERNEL(distile_##kernel##_vectors_##type, Arguments,                                                 \
                         (function<ElementOf<number>::Type, layer_bytes / sizeof(ElementOf<number>::Type)>))           \
    DISTILE_LAYER_KERNEL(distile_##kernel##_elements_##type, Arguments, (function<ElementOf<number>::Type, 1>))
#define DISTILE_LAYER_KERNEL(name, Arguments, function)                                                                \
    extern "C" __global__ void __launch_bounds__(block_threads) name(Arguments of) {                                   \
        wait_for_earlier_kernels();                                                                                    \
        function(of);                                                                                                  \
    }

#endif
