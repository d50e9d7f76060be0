// Masks from the scores of pixels.
#include "layer_pixels.cuh"

using namespace distile;

namespace {

/** The sum of every step-th product of a pixel, from the first on. */
template<typename Element>
__device__ float sum_products(const Element *pixel, const ScoredPixels &of, uint32_t first, uint32_t step) {
    float sum = 0;
    for (uint32_t c = first; c < of.channels; c += step) {
        sum += to_float(pixel[c]) * (of.weights ? of.weights[c] : 1);
    }
    return sum;
}

/** A warp makes a word. */
template<typename Element> __device__ void score_pixels(const ScoredPixels &of, uint32_t *to) {
    const uint32_t word = (blockIdx.x * block_threads + threadIdx.x) / 32;
    if (word >= of.num_words) {
        return;
    }
    const uint32_t row = divide(word, of.words_per_row), image = divide(row, of.height);
    const uint32_t x = (word - row * of.words_per_row.value) * 32, y = row - image * of.height.value;
    const Element *const first = find_pixel<Element>(of.from, image, y, x);
    const uint32_t pixels = min(32u, static_cast<uint32_t>(of.width) - x);
    uint32_t bits = 0;
    if (of.by_lane != 0) {
        const bool above =
            lane() < pixels && sum_products(first + lane() * of.from.stride_w, of, 0, 1) + of.bias > of.threshold;
        bits = __ballot_sync(all_lanes, above);
    } else {
        for (uint32_t pixel = 0; pixel < pixels; pixel++) {
            float sum = sum_products(first + pixel * of.from.stride_w, of, lane(), 32);
            for (int step = 16; step > 0; step /= 2) {
                sum += __shfl_xor_sync(all_lanes, sum, step);
            }
            bits |= (sum + of.bias > of.threshold ? 1u : 0u) << pixel;
        }
    }
    if (lane() == 0) {
        to[word] = bits;
    }
}

}  // namespace

#define DISTILE_SCORES(type, Element)                                                                                  \
    extern "C" __global__ void __launch_bounds__(block_threads)                                                        \
        distile_score_pixels_##type(ScoredPixels of, uint32_t *to) {                                                   \
        score_pixels<Element>(of, to);                                                                                 \
    }

DISTILE_SCORES(float32, float)
DISTILE_SCORES(float16, __half)
DISTILE_SCORES(bfloat16, __nv_bfloat16)
