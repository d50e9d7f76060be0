// Combines the active pixels of two tensors, or copies those of one.
#include "runtime/cuda/kernels/activations.cuh"
#include "runtime/cuda/kernels/layer_pixels.cuh"

using namespace distile;

namespace {

template<typename Element, uint32_t size> __device__ void combine_pixels(const CombinedPixels &of) {
    for_each_vector<size>(of.list, of.vectors, of.team, [&](uint32_t image, uint32_t y, uint32_t x, uint32_t channel) {
        float values[size], other[size];
        load(find_pixel<Element>(of.from, image, y, x) + channel, values);
        if (of.how != DISTILE_COPY) {
            load(find_pixel<Element>(of.other, image, y, x) + channel, other);
            activate(of.other_activation, other);
#pragma unroll
            for (uint32_t i = 0; i < size; i++) {
                values[i] = of.how == DISTILE_ADD ? values[i] + other[i] : values[i] * other[i];
            }
        }
        activate(of.activation, values);
        store(values, find_pixel<Element>(of.to, image, y, x) + channel);
    });
}

}  // namespace

#define DISTILE_ROW(number, name, ...) DISTILE_LAYER_KERNELS(combine, number, name, CombinedPixels, combine_pixels)
DISTILE_FLOAT_TYPES(DISTILE_ROW)
