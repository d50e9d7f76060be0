// Bytes, bits and lists of pixels into the bits of a mask, and bytes and bits into its list of pixels too; and its bits
// into bytes.
#include "runtime/cuda/kernels/listing.cuh"
#include "runtime/cuda/kernels/mask_sources.h"

using namespace distile;

namespace {

/** True if this lane's pixel of a word is active. */
__device__ bool is_set(const BytesSource &bytes, uint32_t word) {
    const WordGrid &grid = bytes.grid;
    const uint32_t row = divide(word, grid.words_per_row), image = divide(row, grid.height);
    const uint32_t x = (word - row * grid.words_per_row.value) * 32 + lane(), y = row - image * grid.height.value;
    return word < grid.num_words && x < bytes.width &&
           bytes.bytes[image * bytes.stride_n + y * bytes.stride_h + x] != 0;
}

/** A warp's words, from word `first` on: lane i gets word i, and 0 beyond the last. */
__device__ uint32_t find_words(const BytesSource &bytes, uint32_t first) {
    uint32_t words = 0;
#pragma unroll 1
    for (uint32_t begin = 0; begin < bytes.grid.words_per_warp; begin += words_at_once) {
        bool active[words_at_once];
#pragma unroll
        for (uint32_t i = 0; i < words_at_once; i++) {
            active[i] = is_set(bytes, first + begin + i);
        }
#pragma unroll
        for (uint32_t i = 0; i < words_at_once; i++) {
            const uint32_t word = __ballot_sync(all_lanes, active[i]);
            words = lane() == begin + i ? word : words;
        }
    }
    return words;
}

__device__ uint32_t find_words(const BitsSource &bits, uint32_t first) {
    const WordGrid &grid = bits.grid;
    const uint32_t word = first + lane();
    if (lane() >= grid.words_per_warp || word >= grid.num_words) {
        return 0;
    }
    const uint32_t row = divide(word, grid.words_per_row), x = word - row * grid.words_per_row.value;
    return bits.words[row * bits.stride + x] & (x == grid.words_per_row.value - 1 ? bits.last_bits : ~0u);
}

/** Sets the words, and counts and lists the active pixels if their grid has states. */
template<typename Source> __device__ void set_words(const Source &source, const TileGrid &pixels, uint32_t *counts,
                                                    uint32_t patience, uint32_t *words) {
    wait_for_earlier_kernels();
    const WordGrid &grid = source.grid;
    const uint32_t launch = pixels.states ? launch_number(pixels) : 0;
    const auto find = [&](uint32_t block, uint32_t warp) {
        return find_words(source, first_group(grid.words_per_warp, block, warp));
    };
    const uint32_t warp = threadIdx.x / 32, first = first_group(grid.words_per_warp, blockIdx.x, warp);
    const uint32_t bits = find(blockIdx.x, warp);
    if (lane() < grid.words_per_warp && first + lane() < grid.num_words) {
        words[first + lane()] = bits;
    }
    if (!pixels.states) {
        return;
    }
    const uint32_t at = number_tiles(pixels, gridDim.x, launch, bits, find, counts, patience);
    if (pixels.xy) {
        write_tiles(pixels, grid.words_per_warp, bits, at, [&](uint32_t group) {
            const uint32_t word = first + group;
            const uint32_t row = divide(word, grid.words_per_row), image = divide(row, grid.height);
            return Tile{static_cast<int32_t>((word - row * grid.words_per_row.value) * 32 + lane()),
                        static_cast<int32_t>(row - image * grid.height.value), static_cast<int32_t>(image)};
        });
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(block_threads)
    distile_pack_bytes(BytesSource bytes, TileGrid pixels, uint32_t *counts, uint32_t patience, uint32_t *words) {
    set_words(bytes, pixels, counts, patience, words);
}

/** The source may be the mask's own words. */
extern "C" __global__ void __launch_bounds__(block_threads)
    distile_copy_bits(BitsSource bits, TileGrid pixels, uint32_t *counts, uint32_t patience, uint32_t *words) {
    set_words(bits, pixels, counts, patience, words);
}

/** Writes a byte in each thread. */
extern "C" __global__ void __launch_bounds__(block_threads) distile_unpack_bytes(DeviceBits mask, BytesTarget to) {
    wait_for_earlier_kernels();
    const uint32_t pixel = blockIdx.x * block_threads + threadIdx.x;
    if (pixel < to.pixels) {
        const uint32_t row = divide(pixel, to.width), image = divide(row, to.height);
        const uint32_t x = pixel - row * to.width.value, y = row - image * to.height.value;
        row_of(to.to, image, y)[x] = mask.words[row * mask.words_per_row + x / 32] >> (x % 32) & 1;
    }
}

/** Sets the bits of the listed pixels of image blockIdx.y in zeroed words. */
extern "C" __global__ void __launch_bounds__(block_threads) distile_set_indices(IndicesSource list, uint32_t *words) {
    wait_for_earlier_kernels();
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
