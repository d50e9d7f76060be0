// Layer norm and RMS norm of the active pixels of a tensor.
#include "runtime/cuda/kernels/device.cuh"
#include "runtime/cuda/kernels/elements.cuh"
#include "runtime/cuda/kernels/normalize.h"

using namespace distile;

namespace {

/** The sum of a value over the threads of a pixel, in all of them. Called by all threads of the block. `calls` counts
 * the calls: two in turn use different memory, so one barrier in each suffices. */
__device__ float team_sum(float value, uint32_t team, uint32_t &calls) {
    __shared__ float sums[2][block_threads / 32];
    for (int step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(all_lanes, value, step);
    }
    if (team == 32) {
        return value;
    }
    float *const shared = sums[calls++ % 2];
    if (lane() == 0) {
        shared[threadIdx.x / 32] = value;
    }
    __syncthreads();
    const uint32_t warps = team / 32, first = threadIdx.x / team * warps;
    float sum = 0;
    for (uint32_t warp = 0; warp < warps; warp++) {
        sum += shared[first + warp];
    }
    return sum;
}

/** What a team's pixels have in common. */
struct Team {
    __device__ explicit Team(const NormalizedPixels &of)
        : size(of.team), rank(threadIdx.x % of.team), count(*of.list.count), first(blockIdx.x * (block_threads / size)),
          step(gridDim.x * (block_threads / size)) {
    }
    /** The place in the list for a pass from `base` on. */
    __device__ uint32_t place(uint32_t base) const {
        return base + threadIdx.x / size;
    }

    uint32_t size, rank, count, first, step;
};

template<typename Element> __device__ Element *find(const PixelView &view, const PixelList &list, uint32_t place) {
    const uint32_t xy = list.xy[place];
    return static_cast<Element *>(view.data) + list.images[place] * view.stride_n + (xy >> 16) * view.stride_h +
           (xy & 0xffff) * view.stride_w;
}

__device__ float factor_of(float squares, const NormalizedPixels &of) {
    return 1 / sqrtf(squares / static_cast<float>(of.channels) + of.epsilon);
}

template<uint32_t size> __device__ void load(const float *from, float default_value, float (&to)[size]) {
#pragma unroll
    for (uint32_t i = 0; i < size; i += 4) {
        const float4 four = from ? *reinterpret_cast<const float4 *>(from + i)
                                 : make_float4(default_value, default_value, default_value, default_value);
        to[i] = four.x;
        to[i + 1] = four.y;
        to[i + 2] = four.z;
        to[i + 3] = four.w;
    }
}

/** Normalizes pixels that are read once, in vectors: each thread keeps up to vectors_of_thread. */
template<typename Element> __device__ void normalize_vectors(const NormalizedPixels &of) {
    constexpr uint32_t size = normalized_bytes / sizeof(Element);
    using Elements = Vector<Element, size>;
    const Team team(of);
    const uint32_t vectors = of.channels / size;
    uint32_t calls = 0;
    // All teams of a block make the same number of passes, because they wait for each other.
    for (uint32_t base = team.first; base < team.count; base += team.step) {
        const uint32_t place = team.place(base);
        const bool is_pixel = place < team.count;
        const uint32_t pixel_vectors = is_pixel ? vectors : 0;
        float values[vectors_of_thread][size], shift = 0, sum = 0, mean = 0, squares = 0;
        if (is_pixel) {
            const Element *const from = find<Element>(of.from, of.list, place);
            Elements read[vectors_of_thread];
#pragma unroll
            for (uint32_t i = 0; i < vectors_of_thread; i++) {
                const uint32_t vector = team.rank + i * team.size;
                if (vector < vectors) {
                    read[i] = *reinterpret_cast<const Elements *>(from + vector * size);
                }
            }
            shift = of.centred != 0 ? to_float(from[0]) : 0;
#pragma unroll
            for (uint32_t i = 0; i < vectors_of_thread; i++) {
                if (team.rank + i * team.size < vectors) {
#pragma unroll
                    for (uint32_t j = 0; j < size; j++) {
                        values[i][j] = to_float(read[i].elements[j]) - shift;
                        sum += values[i][j];
                    }
                }
            }
        }
        if (of.centred != 0) {
            mean = team_sum(sum, team.size, calls) / static_cast<float>(of.channels);
        }
#pragma unroll
        for (uint32_t i = 0; i < vectors_of_thread; i++) {
            if (team.rank + i * team.size < pixel_vectors) {
#pragma unroll
                for (uint32_t j = 0; j < size; j++) {
                    const float deviation = values[i][j] - mean;
                    squares += deviation * deviation;
                }
            }
        }
        const float factor = factor_of(team_sum(squares, team.size, calls), of);
        if (is_pixel) {
            Element *const to = find<Element>(of.to, of.list, place);
#pragma unroll
            for (uint32_t i = 0; i < vectors_of_thread; i++) {
                const uint32_t vector = team.rank + i * team.size;
                if (vector < vectors) {
                    float gamma[size], beta[size];
                    load(of.gamma ? of.gamma + vector * size : nullptr, 1, gamma);
                    load(of.beta ? of.beta + vector * size : nullptr, 0, beta);
                    Elements written;
#pragma unroll
                    for (uint32_t j = 0; j < size; j++) {
                        from_float((values[i][j] - mean) * factor * gamma[j] + beta[j], written.elements[j]);
                    }
                    *reinterpret_cast<Elements *>(to + vector * size) = written;
                }
            }
        }
    }
}

/** Normalizes pixels of any size and alignment, one element after the other. */
template<typename Element> __device__ void normalize_elements(const NormalizedPixels &of) {
    const Team team(of);
    uint32_t calls = 0;
    for (uint32_t base = team.first; base < team.count; base += team.step) {
        const uint32_t place = team.place(base);
        const uint32_t channels = place < team.count ? of.channels : 0;
        const Element *const from = channels > 0 ? find<Element>(of.from, of.list, place) : nullptr;
        const float shift = channels > 0 && of.centred != 0 ? to_float(from[0]) : 0;
        float sum = 0, mean = 0, squares = 0;
        if (of.centred != 0) {
            for (uint32_t c = team.rank; c < channels; c += team.size) {
                sum += to_float(from[c]) - shift;
            }
            mean = team_sum(sum, team.size, calls) / static_cast<float>(of.channels);
        }
        for (uint32_t c = team.rank; c < channels; c += team.size) {
            const float deviation = to_float(from[c]) - shift - mean;
            squares += deviation * deviation;
        }
        const float factor = factor_of(team_sum(squares, team.size, calls), of);
        Element *const to = channels > 0 ? find<Element>(of.to, of.list, place) : nullptr;
        for (uint32_t c = team.rank; c < channels; c += team.size) {
            const float gamma = of.gamma ? of.gamma[c] : 1, beta = of.beta ? of.beta[c] : 0;
            from_float((to_float(from[c]) - shift - mean) * factor * gamma + beta, to[c]);
        }
    }
}

}  // namespace

#define DISTILE_NORMALIZE(type, Element)                                                                               \
    extern "C" __global__ void __launch_bounds__(block_threads)                                                        \
        distile_normalize_vectors_##type(NormalizedPixels of) {                                                        \
        wait_for_earlier_kernels();                                                                                    \
        normalize_vectors<Element>(of);                                                                                \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(block_threads)                                                        \
        distile_normalize_elements_##type(NormalizedPixels of) {                                                       \
        wait_for_earlier_kernels();                                                                                    \
        normalize_elements<Element>(of);                                                                               \
    }

#define DISTILE_ROW(number, name, ...) DISTILE_NORMALIZE(name, ElementOf<number>::Type)
DISTILE_FLOAT_TYPES(DISTILE_ROW)
