// Packs and unpacks the active pixels of a tensor, and counts those of every image.
#include "device.cuh"
#include "packing.h"

using namespace distile;

namespace {

template<typename Unit> __device__ Unit *find(const PixelView &view, uint32_t image, uint32_t y, uint32_t x) {
    return static_cast<Unit *>(view.data) + image * view.stride_n + y * view.stride_h + x * view.stride_w;
}

/** Copies listed pixels, one per team. */
template<typename Unit, bool to_packed> __device__ void move_pixels(const Packing &packing) {
    const uint32_t teams = block_threads / packing.team, rank = threadIdx.x & (packing.team - 1);
    const uint32_t count = to_packed ? min(*packing.list.count, packing.capacity) : *packing.list.count;
    for (uint32_t i = blockIdx.x * teams + threadIdx.x / packing.team; i < count; i += gridDim.x * teams) {
        const uint32_t xy = packing.list.xy[i];
        Unit *const pixel = find<Unit>(packing.pixels, packing.list.images[i], xy >> 16, xy & 0xffff);
        if (i < packing.capacity) {
            const uint32_t row = divide(i, packing.width), image = divide(row, packing.height);
            Unit *const packed =
                find<Unit>(packing.packed, image, row - image * packing.height.value, i - row * packing.width.value);
            for (uint32_t unit = rank; unit < packing.units; unit += packing.team) {
                (to_packed ? packed : pixel)[unit] = (to_packed ? pixel : packed)[unit];
            }
        } else if (packing.zero != 0) {
            for (uint32_t unit = rank; unit < packing.units; unit += packing.team) {
                pixel[unit] = Unit{};
            }
        }
    }
}

/** The sum of a value over the block, in all threads. */
__device__ uint32_t block_sum(uint32_t value) {
    __shared__ uint32_t sums[block_threads / 32];
    value = warp_sum(value);
    if (lane() == 0) {
        sums[threadIdx.x / 32] = value;
    }
    __syncthreads();
    uint32_t sum = 0;
    for (uint32_t one : sums) {
        sum += one;
    }
    return sum;
}

/** The sum of the values of earlier threads of the block. */
__device__ uint32_t sum_before(uint32_t value) {
    __shared__ uint32_t sums[block_threads / 32];
    uint32_t sum = value;
    for (uint32_t step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(all_lanes, sum, step);
        sum += lane() >= step ? other : 0;
    }
    if (lane() == 31) {
        sums[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    for (uint32_t warp = 0; warp < threadIdx.x / 32; warp++) {
        sum += sums[warp];
    }
    return sum - value;
}

}  // namespace

#define DISTILE_PACKING(name, Unit, to_packed)                                                                         \
    extern "C" __global__ void __launch_bounds__(block_threads) name(Packing packing) {                                \
        move_pixels<Unit, to_packed>(packing);                                                                         \
    }

DISTILE_PACKING(distile_pack_2, uint16_t, true)
DISTILE_PACKING(distile_pack_4, uint32_t, true)
DISTILE_PACKING(distile_pack_16, uint4, true)
DISTILE_PACKING(distile_unpack_2, uint16_t, false)
DISTILE_PACKING(distile_unpack_4, uint32_t, false)
DISTILE_PACKING(distile_unpack_16, uint4, false)

/** Counts the active pixels of an image's part in every block; the last one that is done adds up the parts. */
extern "C" __global__ void __launch_bounds__(block_threads) distile_count_lengths(Lengths of) {
    __shared__ bool is_last;
    const uint32_t image = divide(blockIdx.x, of.parts), part = blockIdx.x - image * of.parts.value;
    const uint32_t *const words = of.words + static_cast<int64_t>(image) * of.words_per_image;
    const uint32_t first = part * words_of_part, last = min(first + words_of_part, of.words_per_image);
    uint32_t own = 0;
#pragma unroll 4
    for (uint32_t word = first + threadIdx.x; word < last; word += block_threads) {
        own += __popc(words[word]);
    }
    const uint32_t sum = block_sum(own);
    uint32_t *const done = of.counts, *const counts = of.counts + 1;
    if (threadIdx.x == 0) {
        counts[blockIdx.x] = sum;
        __threadfence();
        is_last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) {
        return;
    }
    __threadfence();
    const volatile uint32_t *const known = counts;
    const uint32_t share = (gridDim.x + block_threads - 1) / block_threads;
    const uint32_t begin = min(threadIdx.x * share, gridDim.x), end = min(begin + share, gridDim.x);
    uint32_t of_thread = 0;
    for (uint32_t i = begin; i < end; i++) {
        of_thread += known[i];
    }
    uint32_t before = sum_before(of_thread);
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t next = divide(i, of.parts);
        if (i == next * of.parts.value) {
            of.lengths[next] = static_cast<int32_t>(before);
        }
        before += known[i];
    }
    if (begin < end && end == gridDim.x) {
        of.lengths[divide(gridDim.x, of.parts)] = static_cast<int32_t>(before);
    }
}
