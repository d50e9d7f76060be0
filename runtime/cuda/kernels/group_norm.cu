// Group norm of the active pixels.
#include "runtime/cuda/kernels/activations.cuh"
#include "runtime/cuda/kernels/layer_pixels.cuh"

using namespace distile;

namespace {

template<typename Element, uint32_t size> __device__ void normalize_groups(const NormalizedGroups &of) {
    for_each_vector<size>(of.list, of.vectors, of.team, [&](uint32_t image, uint32_t y, uint32_t x, uint32_t channel) {
        float values[size], mean = 0, factor = 0;
        load(find_pixel<Element>(of.from, image, y, x) + channel, values);
        uint32_t group = ~0u;
#pragma unroll
        for (uint32_t i = 0; i < size; i++) {
            const uint32_t c = channel + i, own = divide(c, of.group);
            if (own != group) {
                group = own;
                const int64_t at = static_cast<int64_t>(image) * of.stride + group;
                mean = of.mean[at];
                factor = 1 / sqrtf(of.variance[at] + of.epsilon);
            }
            values[i] = (values[i] - mean) * (factor * (of.gamma ? of.gamma[c] : 1)) + (of.beta ? of.beta[c] : 0);
        }
        activate(of.activation, values);
        store(values, find_pixel<Element>(of.to, image, y, x) + channel);
    });
}

}  // namespace

#define DISTILE_ROW(number, name, ...)                                                                                 \
    DISTILE_LAYER_KERNELS(normalize_groups, number, name, NormalizedGroups, normalize_groups)
DISTILE_FLOAT_TYPES(DISTILE_ROW)
