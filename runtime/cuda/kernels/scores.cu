// Masks from the scores of pixels.
#include "runtime/cuda/kernels/layer_pixels.cuh"

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

/** Called by a warp: stores a word and the bytes of its pixels. */
__device__ void store_word(const ScoredPixels &of, const Run &run, uint32_t bits, uint32_t *to) {
    if (lane() == 0) {
        *to = bits;
    }
    if (of.mirror.bytes && lane() < run.pixels) {
        row_of(of.mirror, run.image, run.y)[run.x + lane()] = bits >> lane() & 1;
    }
}

/** A warp makes a word, a lane scores a pixel. */
template<typename Element> __device__ void score_by_lane(const ScoredPixels &of, uint32_t *to) {
    const uint32_t word = (blockIdx.x * block_threads + threadIdx.x) / 32;
    if (word >= of.num_words) {
        return;
    }
    const Run run(of, word);
    const Element *const pixel = find_pixel<Element>(of.from, run.image, run.y, run.x) + lane() * of.from.stride_w;
    const bool above = lane() < run.pixels && sum_products(pixel, of) + of.bias > of.threshold;
    store_word(of, run, __ballot_sync(all_lanes, above), to + word);
}

template<uint32_t size> __device__ Vector<float, size> ones() {
    Vector<float, size> vector;
#pragma unroll
    for (uint32_t i = 0; i < size; i++) {
        vector.elements[i] = 1;
    }
    return vector;
}

/** A lane's share of the scores of some pixels. It loads `at_once` vectors of each before it needs any, because memory
 * takes longer than all else here. */
template<uint32_t size, uint32_t at_once, typename Element, uint32_t count>
__device__ void add_products(const ScoredPixels &of, const Element *const (&pixels)[count], const bool (&exists)[count],
                             float (&sums)[count]) {
    constexpr uint32_t together = size < 4 ? size : 4;
    using Weights = Vector<float, together>;
#pragma unroll 1
    for (uint32_t begin = 0; begin < of.channels; begin += at_once * 32 * size) {
        Vector<Element, size> values[count][at_once];
        Weights weights[at_once][size / together];
#pragma unroll
        for (uint32_t i = 0; i < at_once; i++) {
            const uint32_t channel = begin + (i * 32 + lane()) * size;
            const bool inside = channel < of.channels;
#pragma unroll
            for (uint32_t pixel = 0; pixel < count; pixel++) {
                values[pixel][i] = Vector<Element, size>{};
                if (inside && exists[pixel]) {
                    values[pixel][i] = *reinterpret_cast<const Vector<Element, size> *>(pixels[pixel] + channel);
                }
            }
#pragma unroll
            for (uint32_t part = 0; part < size / together; part++) {
                weights[i][part] = ones<together>();
                if (inside && of.weights) {
                    weights[i][part] = *reinterpret_cast<const Weights *>(of.weights + channel + part * together);
                }
            }
        }
        // Keeps the compiler from loading what it needs next.
        __syncwarp();
#pragma unroll
        for (uint32_t i = 0; i < at_once; i++) {
#pragma unroll
            for (uint32_t pixel = 0; pixel < count; pixel++) {
#pragma unroll
                for (uint32_t c = 0; c < size; c++) {
                    sums[pixel] +=
                        to_float(values[pixel][i].elements[c]) * weights[i][c / together].elements[c % together];
                }
            }
        }
    }
}

/** The bits of every eighth pixel of a word, of which a warp scores `count` at once. */
template<uint32_t size, uint32_t count, uint32_t at_once, typename Element>
__device__ uint32_t score_pixels_of_warp(const ScoredPixels &of, const Run &run, const Element *first) {
    constexpr uint32_t warps = block_threads / 32;
    const uint32_t warp = threadIdx.x / 32;
    const Element *pixels[count];
    bool exists[count];
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
        pixels[i] = first + (warp + i * warps) * of.from.stride_w;
        exists[i] = warp + i * warps < run.pixels;
    }
    float sums[count] = {};
    add_products<size, at_once>(of, pixels, exists, sums);
    uint32_t bits = 0;
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
        for (int step = 16; step > 0; step /= 2) {
            sums[i] += __shfl_xor_sync(all_lanes, sums[i], step);
        }
        bits |= (exists[i] && sums[i] + of.bias > of.threshold ? 1u : 0u) << (warp + i * warps);
    }
    return bits;
}

/** A block makes a word. Words of few pixels are those of small masks, where more loads at once are faster; elsewhere
 * more blocks are. */
template<typename Element, uint32_t size> __device__ void score_by_warp(const ScoredPixels &of, uint32_t *to) {
    constexpr uint32_t warps = block_threads / 32;
    __shared__ uint32_t found[warps];
    const Run run(of, blockIdx.x);
    const Element *const first = find_pixel<Element>(of.from, run.image, run.y, run.x);
    const uint32_t bits = run.pixels <= 2 * warps ? score_pixels_of_warp<size, 2, 2>(of, run, first)
                                                  : score_pixels_of_warp<size, 4, 1>(of, run, first);
    if (lane() == 0) {
        found[threadIdx.x / 32] = bits;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        store_word(of, run, warp_sum(lane() < warps ? found[lane()] : 0), to + blockIdx.x);
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
    extern "C" __global__ void __launch_bounds__(block_threads, 4)                                                     \
        distile_score_pixels_##name(ScoredPixels of, uint32_t *to) {                                                   \
        score_pixels<Element, size>(of, to);                                                                           \
    }

#define DISTILE_ROW(number, name, ...) DISTILE_SCORES(name, ElementOf<number>::Type)
DISTILE_FLOAT_TYPES(DISTILE_ROW)
