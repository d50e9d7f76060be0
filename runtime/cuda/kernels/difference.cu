// Masks from tensors: the pixels at which two tensors differ.
#include "runtime/cuda/kernels/device.cuh"
#include "runtime/cuda/kernels/difference.h"
#include "runtime/cuda/kernels/elements.cuh"

using namespace distile;

namespace {

/** Which elements differ, or have a NaN difference. */
template<typename Element, uint32_t size>
__device__ uint32_t differing(const Vector<Element, size> &a, const Vector<Element, size> &b, float threshold) {
    uint32_t found = 0;
#pragma unroll
    for (uint32_t i = 0; i < size; i++) {
        // Not ">": a NaN difference must count.
        const bool same = fabsf(to_float(a.elements[i]) - to_float(b.elements[i])) <= threshold;
        found |= (same ? 0u : 1u) << i;
    }
    return found;
}

/** The pixels of a word in both tensors. */
template<typename Element> struct ComparedWord {
    const Element *a, *b;
    uint32_t pixels;  ///< 0 beyond the last word.
};

template<typename Element> __device__ ComparedWord<Element> find_word(const Comparison &comparison, uint32_t word) {
    const uint32_t row = divide(word, comparison.words_per_row), image = divide(row, comparison.height);
    const uint32_t x = (word - row * comparison.words_per_row.value) * 32, y = row - image * comparison.height.value;
    const Elements &a = comparison.a, &b = comparison.b;
    return {static_cast<const Element *>(a.data) + image * a.stride_n + y * a.stride_h + x * a.stride_w,
            static_cast<const Element *>(b.data) + image * b.stride_n + y * b.stride_h + x * b.stride_w,
            word < comparison.num_words ? min(32u, comparison.width - x) : 0};
}

template<uint32_t size, typename Element> __device__ Vector<Element, size> load(const Element *from) {
    return *reinterpret_cast<const Vector<Element, size> *>(from);
}

constexpr uint32_t vectors_at_once = 4;

/** Compares the elements of a word's pixels, one vector per thread of a team at once. A team has a power of two
 * threads, from a warp to a block. A vector lies in one pixel, or in two if pixels are packed. */
template<typename Element, uint32_t size> __device__ void compare(const Comparison &comparison, uint32_t *to) {
    __shared__ uint32_t found_by_warp[block_threads / 32];
    constexpr uint32_t whole = (1u << size) - 1;
    const uint32_t team = comparison.team, rank = threadIdx.x % team;
    const uint32_t word = blockIdx.x * (block_threads / team) + threadIdx.x / team;
    const ComparedWord<Element> compared = find_word<Element>(comparison, word);
    const uint32_t channels = comparison.channels.value, elements = compared.pixels * channels;
    const int64_t gap_a = comparison.a.stride_w - channels, gap_b = comparison.b.stride_w - channels;
    uint32_t bits = 0;
    for (uint32_t first = rank * size; first < elements; first += vectors_at_once * team * size) {
        // All loads precede the first use, and none waits for the loop bound.
        Vector<Element, size> a[vectors_at_once], b[vectors_at_once];
        uint32_t pixels[vectors_at_once];
#pragma unroll
        for (uint32_t i = 0; i < vectors_at_once; i++) {
            const uint32_t element = first + i * team * size;
            a[i] = b[i] = Vector<Element, size>{};
            pixels[i] = divide(element, comparison.channels);
            if (element + size <= elements) {
                a[i] = load<size>(compared.a + element + pixels[i] * gap_a);
                b[i] = load<size>(compared.b + element + pixels[i] * gap_b);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < vectors_at_once; i++) {
            const uint32_t element = first + i * team * size, pixel = pixels[i];
            const uint32_t found = differing(a[i], b[i], comparison.threshold);
            const uint32_t own = min((pixel + 1) * channels - element, size), of_own = found & whole >> (size - own);
            bits |= (of_own != 0 ? 1u : 0u) << pixel % 32 | (found != of_own ? 1u : 0u) << (pixel + 1) % 32;
        }
    }
    // The elements that do not fill a vector.
    const uint32_t rest = elements / size * size + rank;
    if (size > 1 && rank < size - 1 && rest < elements) {
        const uint32_t pixel = divide(rest, comparison.channels);
        bits |= differing(load<1>(compared.a + rest + pixel * gap_a), load<1>(compared.b + rest + pixel * gap_b),
                          comparison.threshold)
                << pixel;
    }
    for (int step = 16; step > 0; step /= 2) {
        bits |= __shfl_xor_sync(all_lanes, bits, step);
    }
    if (lane() == 0) {
        found_by_warp[threadIdx.x / 32] = bits;
    }
    __syncthreads();
    if (rank == 0 && compared.pixels > 0) {
        for (uint32_t warp = 1; warp < team / 32; warp++) {
            bits |= found_by_warp[threadIdx.x / 32 + warp];
        }
        to[word] = bits;
    }
}

/** Compares packed pixels, four per thread, of rows whose width is a multiple of four: they load as whole vectors, all
 * at once. */
template<typename Element, uint32_t channels>
__device__ void compare_pixels(const Comparison &comparison, uint32_t *to) {
    constexpr uint32_t size = compared_lanes;
    const uint32_t thread = blockIdx.x * pixel_threads + threadIdx.x, word = thread / 8, first = thread % 8 * 4;
    const ComparedWord<Element> compared = find_word<Element>(comparison, word);
    const Element *const a = compared.a + first * channels, *const b = compared.b + first * channels;
    uint32_t found = 0;
    if (first < compared.pixels) {
        Vector<Element, size> all_a[channels], all_b[channels];
#pragma unroll
        for (uint32_t i = 0; i < channels; i++) {
            all_a[i] = load<size>(a + i * size);
            all_b[i] = load<size>(b + i * size);
        }
#pragma unroll
        for (uint32_t i = 0; i < channels; i++) {
            found |= differing(all_a[i], all_b[i], comparison.threshold) << size * i;
        }
    }
    uint32_t bits = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        bits |= ((found >> i * channels & ((1u << channels) - 1)) != 0 ? 1u : 0u) << (first + i);
    }
    for (int step = 4; step > 0; step /= 2) {
        bits |= __shfl_xor_sync(all_lanes, bits, step);
    }
    if (first == 0 && compared.pixels > 0) {
        to[word] = bits;
    }
}

}  // namespace

// One kernel per type and number of channels, because for small images fetching the code dominates the time.

#define DISTILE_COMPARE(name, threads, function)                                                                       \
    extern "C" __global__ void __launch_bounds__(threads) name(Comparison comparison, uint32_t *to) {                  \
        function(comparison, to);                                                                                      \
    }
#define DISTILE_COMPARE_TYPE(type, Element)                                                                            \
    DISTILE_COMPARE(distile_compare_1_##type, block_threads, (compare<Element, 1>))                                    \
    DISTILE_COMPARE(distile_compare_4_##type, block_threads, (compare<Element, compared_lanes>))                       \
    DISTILE_COMPARE(distile_compare_pixels_1_##type, pixel_threads, (compare_pixels<Element, 1>))                      \
    DISTILE_COMPARE(distile_compare_pixels_2_##type, pixel_threads, (compare_pixels<Element, 2>))                      \
    DISTILE_COMPARE(distile_compare_pixels_3_##type, pixel_threads, (compare_pixels<Element, 3>))                      \
    DISTILE_COMPARE(distile_compare_pixels_4_##type, pixel_threads, (compare_pixels<Element, 4>))

#define DISTILE_ROW(number, name, ...) DISTILE_COMPARE_TYPE(name, ElementOf<number>::Type)
DISTILE_FLOAT_TYPES(DISTILE_ROW)
