// Bytes, bits and lists of pixels into the bits of a mask.
#include "device.cuh"
#include "mask_sources.h"

using namespace distile;

namespace {

/** True if this lane's pixel of a word is active. */
__device__ bool is_set(const BytesSource &bytes, int32_t width, uint32_t word) {
    const uint32_t row = divide(word, bytes.words_per_row), image = divide(row, bytes.height);
    const uint32_t x = (word - row * bytes.words_per_row.value) * 32 + lane(), y = row - image * bytes.height.value;
    return word < bytes.num_words && x < static_cast<uint32_t>(width) &&
           bytes.bytes[image * bytes.stride_n + y * bytes.stride_h + x] != 0;
}

}  // namespace

/** Each warp packs words_per_warp words. */
extern "C" __global__ void __launch_bounds__(block_threads)
    distile_pack_bytes(BytesSource bytes, int32_t width, TileGrids grids, uint32_t num_grids, uint32_t *words) {
    clear_states(grids, num_grids);
    const uint32_t first = (blockIdx.x * (block_threads / 32) + threadIdx.x / 32) * words_per_warp;
    bool active[words_per_warp];
#pragma unroll
    for (uint32_t i = 0; i < words_per_warp; i++) {
        active[i] = is_set(bytes, width, first + i);
    }
#pragma unroll
    for (uint32_t i = 0; i < words_per_warp; i++) {
        const uint32_t word = __ballot_sync(all_lanes, active[i]);
        if (lane() == i && first + i < bytes.num_words) {
            words[first + i] = word;
        }
    }
}

/** Each thread copies one word. */
extern "C" __global__ void __launch_bounds__(block_threads)
    distile_copy_bits(BitsSource bits, TileGrids grids, uint32_t num_grids, uint32_t *words) {
    clear_states(grids, num_grids);
    const uint32_t word = blockIdx.x * block_threads + threadIdx.x;
    if (word < bits.num_words) {
        const uint32_t row = divide(word, bits.words_per_row), x = word - row * bits.words_per_row.value;
        words[word] = bits.words[row * bits.stride + x] & (x == bits.words_per_row.value - 1 ? bits.last_bits : ~0u);
    }
}

/** Sets the bits of the listed pixels of image blockIdx.y in zeroed words. */
extern "C" __global__ void __launch_bounds__(block_threads)
    distile_set_indices(IndicesSource list, TileGrids grids, uint32_t num_grids, uint32_t *words) {
    if (blockIdx.y == 0) {
        clear_states(grids, num_grids);
    }
    const uint32_t image = blockIdx.y;
    const int64_t count = list.counts ? min(static_cast<int64_t>(list.counts[image]), list.stride) : list.stride;
    const int32_t *const indices = list.indices + image * list.stride;
    uint32_t *const to = words + static_cast<int64_t>(image) * list.words_per_image;
    for (int64_t i = blockIdx.x * block_threads + threadIdx.x; i < count; i += gridDim.x * block_threads) {
        // As unsigned, negative indices are beyond the image too.
        const auto pixel = static_cast<uint32_t>(indices[i]);
        if (pixel < list.pixels) {
            const uint32_t y = divide(pixel, list.width), x = pixel - y * list.width.value;
            atomicOr(to + y * list.words_per_row + x / 32, 1u << (x % 32));
        }
    }
}
