/** \file
 * The rows of the matrix product: one for each pixel of the active tiles, in the order of the tiles.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ROWS_CUH
#define DISTILE_CUDA_TENSOR_CORE_ROWS_CUH

#include "kernels/tensor_core/arguments.h"
#include "kernels/tensor_core/ptx.cuh"

namespace distile::tensor_core {

/** An output pixel. */
struct Pixel {
    int32_t x, y, image;
};

/** Memory that a block shares to list the pixels of a small mask. */
struct ListMemory {
    uint16_t pixels[listless_pixels];
    uint32_t warps[32];
};

template<class Op> class Rows {
public:
    static constexpr int32_t tile_pixels = Op::tile_h * Op::tile_w;

    /** Called by all threads of a block. */
    __device__ Rows(const Arguments &arguments, const Tiles &tiles, ListMemory &memory)
        : arguments_(arguments), tiles_(tiles), memory_(memory) {
        count_ = tiles.xy ? *tiles.count * tile_pixels : list();
    }
    __device__ uint32_t count() const {
        return count_;
    }
    /** What the list says of a row; used later, so that nothing waits for memory here. */
    struct Entry {
        uint32_t xy, image;
    };
    __device__ Entry fetch(uint32_t row) const {
        if (row >= count_) {
            return {};
        }
        if (!tiles_.xy) {
            return {memory_.pixels[row], 0};
        }
        const uint32_t tile = row / tile_pixels;
        return {__ldcg(tiles_.xy + tile), __ldcg(tiles_.xy + tiles_.capacity + tile)};
    }
    /** The pixel of a row below count(). Beyond the image for some rows of tiles at its right and lower edge. */
    __device__ Pixel pixel(uint32_t row, const Entry &entry) const {
        const Arguments &a = arguments_;
        if (!tiles_.xy) {
            const uint32_t line = entry.xy / a.width, image = line / a.height;
            return {static_cast<int32_t>(entry.xy - line * a.width), static_cast<int32_t>(line - image * a.height),
                    static_cast<int32_t>(image)};
        }
        const uint32_t within = row % tile_pixels;
        return {static_cast<int32_t>((entry.xy & 0xffff) + within % Op::tile_w),
                static_cast<int32_t>((entry.xy >> 16) + within / Op::tile_w), static_cast<int32_t>(entry.image)};
    }
    /** Whether the result at a pixel is stored. */
    __device__ bool is_stored(const Pixel &pixel) const {
        const Arguments &a = arguments_;
        if (!tiles_.xy) {
            return true;
        }
        if (pixel.x >= a.width || pixel.y >= a.height) {
            return false;
        }
        return a.store_tiles != 0 ||
               (a.bits[(pixel.image * a.height + pixel.y) * a.words_per_row + pixel.x / 32] >> (pixel.x % 32) & 1) != 0;
    }

private:
    /** Lists the active pixels: each lane counts those of a word of the mask, and then a warp lists the pixels of one
     * word after the other, a lane for each. */
    __device__ uint32_t list() {
        const Arguments &a = arguments_;
        const uint32_t words = a.batch * a.height * a.words_per_row;
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
        uint32_t total = 0;
        // Most masks have no more words than a block has threads.
        for (uint32_t first = 0; first < words; first += blockDim.x) {
            const uint32_t word = first + threadIdx.x, row = word / a.words_per_row;
            const uint32_t bits = word < words ? a.bits[word] : 0, count = __popc(bits);
            const uint32_t pixel = row * a.width + 32 * (word - row * a.words_per_row);
            uint32_t sum = count;
#pragma unroll
            for (uint32_t step = 1; step < 32; step *= 2) {
                const uint32_t before = __shfl_up_sync(~0u, sum, step);
                sum += lane >= step ? before : 0;
            }
            if (lane == 31) {
                memory_.warps[warp] = sum;
            }
            __syncthreads();
            const uint32_t of_warp = lane < warps ? memory_.warps[lane] : 0;
            const uint32_t at = total + sum - count + __reduce_add_sync(~0u, lane < warp ? of_warp : 0);
            total += __reduce_add_sync(~0u, of_warp);
            // Both fit: pixels of masks without a list are at most 4096.
            const uint32_t begin = at | pixel << 16, list = shared_address(memory_.pixels);
            if (__any_sync(~0u, bits != 0)) {
#pragma unroll 4
                for (int i = 0; i < 32; i++) {
                    const uint32_t others = __shfl_sync(~0u, bits, i), their_begin = __shfl_sync(~0u, begin, i);
                    const uint32_t entry = (their_begin & 0xffff) + __popc(others & ((1u << lane) - 1));
                    store_shared_if((others >> lane & 1) != 0, list + 2 * entry,
                                    static_cast<uint16_t>((their_begin >> 16) + lane));
                }
            }
            __syncthreads();
        }
        return total;
    }

    const Arguments &arguments_;
    const Tiles &tiles_;
    ListMemory &memory_;
    uint32_t count_;
};

/** What a block reads of the input for some of its rows. */
template<class Op> struct Source {
    int32_t at;         ///< The first input that the pixel's window reads, from Arguments::input.data on, in 16 bytes.
    uint32_t readable;  ///< Bit i: column i of the kernel may be read; bit 16 + i: row i.

    __device__ static Source of(const Arguments &a, const Pixel &pixel) {
        const int32_t x = pixel.x * Op::stride_w - Op::pad_left, y = pixel.y * Op::stride_h - Op::pad_top;
        uint32_t bits = 0;
#pragma unroll
        for (int32_t i = 0; i < Op::kernel_w; i++) {
            const int32_t column = x + i * Op::dilation_w;
            bits |= (column >= a.first_column && column < a.end_column ? 1u : 0u) << i;
        }
#pragma unroll
        for (int32_t i = 0; i < Op::kernel_h; i++) {
            const int32_t row = y + i * Op::dilation_h;
            bits |= (row >= a.first_row && row < a.end_row ? 1u : 0u) << (16 + i);
        }
        return {pixel.image * a.input.stride_n + y * a.input.stride_h + x * a.input.stride_w, bits};
    }
};

/** A place in the reduction, in steps of 128 bytes: a block of input channels outside, the kernel's positions inside
 * it, and channels inside these. A thread follows one of a step's eight pieces of 16 bytes. */
template<class Op> struct ReductionPlace {
    static constexpr int32_t lanes = 16 / sizeof(typename Op::Element);
    static constexpr int32_t step_channels = 8 * lanes;
    static constexpr int32_t block_channels =
        Op::read_channels % step_channels == 0 ? step_channels : Op::read_channels;
    static constexpr int32_t block_pieces = block_channels / lanes;
    static constexpr int32_t taps = Op::kernel_h * Op::kernel_w;
    static constexpr int32_t pieces = taps * Op::read_channels / lanes;
    static constexpr int32_t steps = (pieces + 7) / 8;

    int32_t block, row, column, piece;  ///< The piece within the block.

    __device__ explicit ReductionPlace(int32_t index) {
        const int32_t tap = index / block_pieces % taps;
        block = index / (block_pieces * taps);
        row = tap / Op::kernel_w;
        column = tap % Op::kernel_w;
        piece = index % block_pieces;
    }
    __device__ void step() {
        if constexpr (block_pieces == 8) {
            next_tap();
            return;
        }
        piece += 8;
#pragma unroll 1
        while (piece >= block_pieces) {
            piece -= block_pieces;
            next_tap();
        }
    }
    /** Whether rows that may be read here have this piece, and where it is from their source on. */
    __device__ bool is_whole() const {
        constexpr int32_t blocks = Op::read_channels / block_channels;
        return pieces % 8 == 0 || block < blocks;
    }
    /** The bits of Source::readable that a row needs here. */
    __device__ uint32_t needed() const {
        return 1u << column | 1u << (16 + row);
    }
    __device__ bool is_in(uint32_t readable) const {
        return is_whole() && (readable >> column & readable >> (16 + row) & 1) != 0;
    }
    __device__ int32_t offset(const Arguments &a) const {
        return row * (Op::dilation_h * a.input.stride_h) + column * (Op::dilation_w * a.input.stride_w) +
               block * block_pieces + piece;
    }

private:
    __device__ void next_tap() {
        if (++column == Op::kernel_w) {
            column = 0;
            if (++row == Op::kernel_h) {
                row = 0;
                block++;
            }
        }
    }
};

}  // namespace distile::tensor_core

#endif
