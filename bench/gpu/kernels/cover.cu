// Makes a cover of mixed granularity of a mask: its tiles of several sizes, each where it takes least. A thread has 8 x
// 8 pixels, and four threads a node of 16 x 16. The first kernel decides, from the smallest size upwards, and counts;
// the second one lists.
#include "bench/gpu/kernels/cover.h"

using namespace distile::bench;

namespace {

constexpr uint32_t all_lanes = ~0u, warps = cover_threads / 32;

/** The bits of larger tiles in a thread's word: sixteen of 2 x 2 pixels, four of 4 x 4, one of 8 x 8 and one of 16
 * x 16. */
constexpr uint32_t first_of_4 = 16, of_8 = 1u << 20, of_16 = 1u << 21;

/** Counts by level in one word, wide enough for those of a block. */
constexpr __device__ int32_t shift_of(int32_t level) {
    return level <= 2 ? 16 * level : level == 3 ? 44 : level == 4 ? 54 : 62;
}

__device__ uint32_t count_of(unsigned long long packed, int32_t level) {
    return static_cast<uint32_t>(packed >> shift_of(level) & ((1ull << (shift_of(level + 1) - shift_of(level))) - 1));
}

/** The place of a thread's pixels. */
struct Place {
    int32_t x, y, image;
};

__device__ Place place_of(const CoverCall &call, uint32_t thread) {
    const uint32_t node = thread / 4, quarter = thread % 4;
    const uint32_t row = node / call.node_columns;
    return {static_cast<int32_t>((node - row * call.node_columns) * 16 + quarter % 2 * 8),
            static_cast<int32_t>(row % call.node_rows * 16 + quarter / 2 * 8),
            static_cast<int32_t>(row / call.node_rows)};
}

/** The active pixels of 8 x 8, a byte for each row. */
__device__ unsigned long long read_pixels(const CoverCall &call, const Place &at) {
    unsigned long long bits = 0;
    if (at.image < call.batch && at.x < call.width) {
        const uint32_t *word =
            call.words + (static_cast<int64_t>(at.image) * call.height + at.y) * call.words_per_row + at.x / 32;
#pragma unroll
        for (int32_t i = 0; i < 8; i++, word += call.words_per_row) {
            if (at.y + i < call.height) {
                bits |= static_cast<unsigned long long>(*word >> at.x % 32 & 0xff) << 8 * i;
            }
        }
    }
    return bits;
}

__device__ unsigned long long pack(unsigned long long pixels, uint32_t nodes) {
    return static_cast<unsigned long long>(__popcll(pixels)) |
           static_cast<unsigned long long>(__popc(nodes & 0xffff)) << shift_of(1) |
           static_cast<unsigned long long>(__popc(nodes >> first_of_4 & 0xf)) << shift_of(2) |
           static_cast<unsigned long long>((nodes & of_8) != 0) << shift_of(3) |
           static_cast<unsigned long long>((nodes & of_16) != 0) << shift_of(4);
}

/** The sum of earlier threads of the block, and of all. */
__device__ unsigned long long scan(unsigned long long own, unsigned long long &sum) {
    __shared__ unsigned long long of_warps[warps];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned long long until = own;
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
        const unsigned long long other = __shfl_up_sync(all_lanes, until, step);
        until += lane >= step ? other : 0;
    }
    if (lane == 31) {
        of_warps[warp] = until;
    }
    __syncthreads();
    unsigned long long before = 0;
    sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < warps; i++) {
        before += i < warp ? of_warps[i] : 0;
        sum += of_warps[i];
    }
    return before + until - own;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(cover_threads) decide_cover(CoverCall call) {
    const uint32_t thread = blockIdx.x * cover_threads + threadIdx.x;
    unsigned long long pixels = read_pixels(call, place_of(call, thread));
    // As the host adds them, so that both decide alike.
    float of_pixels[5] = {0, call.tile_us[0], 0, 0, 0};
#pragma unroll
    for (int32_t i = 2; i < 5; i++) {
        of_pixels[i] = of_pixels[i - 1] + call.tile_us[0];
    }
    uint32_t nodes = 0;
    float us_8 = 0;
#pragma unroll
    for (int32_t four = 0; four < 4; four++) {
        float us_4 = 0;
#pragma unroll
        for (int32_t two = 0; two < 4; two++) {
            const int32_t row = four / 2 * 2 + two / 2, column = four % 2 * 2 + two % 2;
            const float parts = of_pixels[__popcll(pixels & 0x303ull << (16 * row + 2 * column))];
            nodes |= parts > call.tile_us[1] ? 1u << (4 * row + column) : 0;
            us_4 += fminf(parts, call.tile_us[1]);
        }
        nodes |= us_4 > call.tile_us[2] ? 1u << (first_of_4 + four) : 0;
        us_8 += fminf(us_4, call.tile_us[2]);
    }
    const bool whole_8 = us_8 > call.tile_us[3];
    us_8 = fminf(us_8, call.tile_us[3]);
    const uint32_t first = threadIdx.x % 32 & ~3u;
    float us_16 = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        us_16 += __shfl_sync(all_lanes, us_8, first + i);
    }
    // From the largest downwards, what lies in a tile is none.
    if (us_16 > call.tile_us[4]) {
        nodes = threadIdx.x % 4 == 0 ? of_16 : 0;
        pixels = 0;
    } else if (whole_8) {
        nodes = of_8;
        pixels = 0;
    } else {
#pragma unroll
        for (int32_t four = 0; four < 4; four++) {
            const int32_t row = four / 2 * 2, column = four % 2 * 2;
            if ((nodes >> (first_of_4 + four) & 1) != 0) {
                nodes &= ~(0x33u << (4 * row + column));
                pixels &= ~(0x0f0f0f0full << (16 * row + 2 * column));
            }
        }
#pragma unroll
        for (int32_t two = 0; two < 16; two++) {
            if ((nodes >> two & 1) != 0) {
                pixels &= ~(0x303ull << (16 * (two / 4) + 2 * (two % 4)));
            }
        }
    }
    call.pixels[thread] = pixels;
    call.nodes[thread] = nodes;
    unsigned long long sum = 0;
    scan(pack(pixels, nodes), sum);
    if (threadIdx.x == 0) {
        call.counts[blockIdx.x] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(cover_threads) list_cover(CoverCall call) {
    __shared__ uint32_t before[cover_levels];
    if (threadIdx.x < cover_levels) {
        before[threadIdx.x] = 0;
    }
    __syncthreads();
    // The tiles of earlier blocks.
    for (uint32_t block = threadIdx.x; block < blockIdx.x; block += cover_threads) {
        const unsigned long long packed = call.counts[block];
#pragma unroll
        for (int32_t level = 0; level < cover_levels; level++) {
            if (const uint32_t count = count_of(packed, level); count != 0) {
                atomicAdd(&before[level], count);
            }
        }
    }
    const uint32_t thread = blockIdx.x * cover_threads + threadIdx.x;
    unsigned long long pixels = call.pixels[thread];
    const uint32_t nodes = call.nodes[thread];
    unsigned long long sum = 0;
    const unsigned long long earlier = scan(pack(pixels, nodes), sum);  // Lets all see `before`.
    uint32_t at[cover_levels];
#pragma unroll
    for (int32_t level = 0; level < cover_levels; level++) {
        at[level] = before[level] + count_of(earlier, level);
    }
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x < cover_levels) {
        const auto level = static_cast<int32_t>(threadIdx.x);
        call.totals[level] = before[level] + count_of(sum, level);
    }
    const Place place = place_of(call, thread);
    const auto write = [&](int32_t level, int32_t x, int32_t y) {
        call.xy[level][at[level]] = static_cast<uint32_t>(place.x + x) | static_cast<uint32_t>(place.y + y) << 16;
        call.image[level][at[level]] = static_cast<uint32_t>(place.image);
        at[level]++;
    };
    for (; pixels != 0; pixels &= pixels - 1) {
        const int32_t bit = __ffsll(static_cast<long long>(pixels)) - 1;
        write(0, bit % 8, bit / 8);
    }
#pragma unroll 1
    for (uint32_t rest = nodes & 0xffff; rest != 0; rest &= rest - 1) {
        const int32_t bit = __ffs(static_cast<int>(rest)) - 1;
        write(1, bit % 4 * 2, bit / 4 * 2);
    }
#pragma unroll 1
    for (uint32_t rest = nodes >> first_of_4 & 0xf; rest != 0; rest &= rest - 1) {
        const int32_t bit = __ffs(static_cast<int>(rest)) - 1;
        write(2, bit % 2 * 4, bit / 2 * 4);
    }
    if ((nodes & of_8) != 0) {
        write(3, 0, 0);
    }
    if ((nodes & of_16) != 0) {
        write(4, 0, 0);
    }
}
