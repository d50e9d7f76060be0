// Pools the windows of the active pixels.
#include "runtime/cuda/kernels/layer_pixels.cuh"

using namespace distile;

namespace {

/** Calls visit(position) for the taps of a window that are in the image, and returns their number. */
template<typename Visit> __device__ int32_t for_each_tap(const PooledAxis &axis, uint32_t at, const Visit &visit) {
    int32_t position = static_cast<int32_t>(at) * axis.stride - axis.pad, count = 0;
    for (int32_t tap = 0; tap < axis.kernel && position < axis.extent; tap++, position += axis.dilation) {
        if (position >= 0) {
            visit(position);
            count++;
        }
    }
    return count;
}

template<typename Element, uint32_t size> __device__ void pool_pixels(const PooledPixels &of) {
    for_each_vector<size>(of.list, of.vectors, of.team, [&](uint32_t image, uint32_t y, uint32_t x, uint32_t channel) {
        float values[size];
        bool is_first = true;
        int32_t width = 0;
        const int32_t height = for_each_tap(of.rows, y, [&](int32_t row) {
            width = for_each_tap(of.columns, x, [&](int32_t column) {
                float tap[size];
                load(find_pixel<Element>(of.from, image, row, column) + channel, tap);
#pragma unroll
                for (uint32_t i = 0; i < size; i++) {
                    values[i] = is_first ? tap[i] : of.largest != 0 ? larger(values[i], tap[i]) : values[i] + tap[i];
                }
                is_first = false;
            });
        });
        if (of.largest == 0) {
            const float pixels = of.count_padding != 0
                                     ? static_cast<float>(static_cast<int64_t>(of.rows.kernel) * of.columns.kernel)
                                     : static_cast<float>(static_cast<int64_t>(height) * width);
#pragma unroll
            for (uint32_t i = 0; i < size; i++) {
                values[i] /= pixels;
            }
        }
        store(values, find_pixel<Element>(of.to, image, y, x) + channel);
    });
}

}  // namespace

#define DISTILE_ROW(number, name, ...) DISTILE_LAYER_KERNELS(pool, number, name, PooledPixels, pool_pixels)
DISTILE_FLOAT_TYPES(DISTILE_ROW)
