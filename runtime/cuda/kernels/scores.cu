// Masks from the scores of pixels.
#include "layer_pixels.cuh"

using namespace distile;

namespace {

/** The sum of a pixel's products. */
template<typename Element> __device__ float sum_products(const Element *pixel, const ScoredPixels &of) {
    float sum = 0;
    for (uint32_t c = 0; c < of.channels; c++) {
        sum += to_float(pixel[c]) * (of.weights ? of.weights[c] : 1);
    }
    return sum;
}

/** Where the pixels of a word begin, and how many there are. */
struct Run {
    uint32_t image, y, x, pixels;

    __device__ Run(const ScoredPixels &of, uint32_t word) {
        const uint32_t row = divide(word, of.words_per_row);
        image = divide(row, of.height);
        x = (word - row * of.words_per_row.value) * 32;
        y = row - image * of.height.value;
        pixels = min(32u, static_cast<uint32_t>(of.width) - x);
    }
};

/** A warp makes a word, a lane scores a pixel. */
template<typename Element> __device__ void score_by_lane(const ScoredPixels &of, uint32_t *to) {
    const uint32_t word = (blockIdx.x * block_threads + threadIdx.x) / 32;
    if (word >= of.num_words) {
        return;
    }
    const Run run(of, word);
    const Element *const pixel = find_pixel<Element>(of.from, run.image, run.y, run.x) + lane() * of.from.stride_w;
    const bool above = lane() < run.pixels && sum_products(pixel, of) + of.bias > of.threshold;
    const uint32_t bits = __ballot_sync(all_lanes, above);
    if (lane() == 0) {
        to[word] = bits;
    }
}

/** A block makes a word, and each of its warps scores every eighth pixel, all at once. */
template<typename Element, uint32_t size> __device__ void score_by_warp(const ScoredPixels &of, uint32_t *to) {
    constexpr uint32_t warps = block_threads / 32, most = 32 / warps;
    __shared__ uint32_t found[warps];
    const Run run(of, blockIdx.x);
    const uint32_t warp = threadIdx.x / 32;
    const Element *const first = find_pixel<Element>(of.from, run.image, run.y, run.x);
    float sums[most] = {};
    for (uint32_t channel = lane() * size; channel < of.channels; channel += 32 * size) {
        float weights[size];
#pragma unroll
        for (uint32_t i = 0; i < size; i++) {
            weights[i] = of.weights ? of.weights[channel + i] : 1;
        }
#pragma unroll
        for (uint32_t own = 0; own < most; own++) {
            const uint32_t pixel = warp + own * warps;
            float values[size] = {};
            if (pixel < run.pixels) {
                load(first + pixel * of.from.stride_w + channel, values);
            }
#pragma unroll
            for (uint32_t i = 0; i < size; i++) {
                sums[own] += values[i] * weights[i];
            }
        }
    }
    uint32_t bits = 0;
#pragma unroll
    for (uint32_t own = 0; own < most; own++) {
        const uint32_t pixel = warp + own * warps;
        for (int step = 16; step > 0; step /= 2) {
            sums[own] += __shfl_xor_sync(all_lanes, sums[own], step);
        }
        bits |= (pixel < run.pixels && sums[own] + of.bias > of.threshold ? 1u : 0u) << pixel;
    }
    if (lane() == 0) {
        found[warp] = bits;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t other = 1; other < warps; other++) {
            bits |= found[other];
        }
        to[blockIdx.x] = bits;
    }
}

template<typename Element, uint32_t size> __device__ void score_pixels(const ScoredPixels &of, uint32_t *to) {
    wait_for_earlier_kernels();
    if (of.by_lane != 0) {
        score_by_lane<Element>(of, to);
    } else {
        score_by_warp<Element, size>(of, to);
    }
}

}  // namespace

#define DISTILE_SCORES(type, Element)                                                                                  \
    DISTILE_SCORE(vectors_##type, Element, layer_bytes / sizeof(Element))                                              \
    DISTILE_SCORE(elements_##type, Element, 1)
#define DISTILE_SCORE(name, Element, size)                                                                             \
    extern "C" __global__ void __launch_bounds__(block_threads)                                                        \
        distile_score_pixels_##name(ScoredPixels of, uint32_t *to) {                                                   \
        score_pixels<Element, size>(of, to);                                                                           \
    }

DISTILE_SCORES(float32, float)
DISTILE_SCORES(float16, __half)
DISTILE_SCORES(bfloat16, __nv_bfloat16)
