// Products with the nonzero weights alone, in float32 (distile_cuda_nonzero_weights in kernels/dot_products.h). The
// kernels read the operator at run time, so one unit serves all.
//
// A block of threads computes some output pixels and channels. What these pixels read is staged in shared memory, some
// chunks of the reduction at a time: columns of pixels, of which a lane has 1, 2 or 4 neighbours. A warp multiplies one
// row of the weights after the other, whose sums stay in registers: all lanes read the same weight, and the column that
// it multiplies. Reading columns is what takes the time: a multiprocessor reads 32 numbers in a cycle.
#include "kernels/cuda_nonzeros/arguments.h"
#include "runtime/cuda/kernels/activations.cuh"
#include "runtime/cuda/kernels/elements.cuh"

namespace distile::cuda_nonzeros {

constexpr uint32_t whole_warp = 0xffffffff;

/** The output pixel of a row of the matrix product, at x | y << 16; in image -1 if it is not stored. */
struct Pixel {
    uint32_t xy;
    int32_t image;

    __device__ bool is_stored() const {
        return image >= 0;
    }
    __device__ int32_t y() const {
        return static_cast<int32_t>(xy >> 16);
    }
    __device__ int32_t x() const {
        return static_cast<int32_t>(xy & 0xffff);
    }
    /** Where it is in a tensor of the output's shape. */
    __device__ char *in(const CudaTensor &tensor) const {
        return tensor.data + image * tensor.stride_n + int64_t{y()} * tensor.stride_h + int64_t{x()} * tensor.stride_w;
    }
};

__device__ inline Pixel pixel_of(const Arguments &a, uint32_t index, uint32_t count) {
    const uint32_t tile_pixels = a.rows.tile * a.columns.tile, tile = index / tile_pixels, within = index % tile_pixels;
    if (tile >= count) {
        return {0, -1};
    }
    const uint32_t first = a.xy[tile], y = (first >> 16) + within / a.columns.tile,
                   x = (first & 0xffff) + within % a.columns.tile;
    const auto image = static_cast<int32_t>(a.xy[a.capacity + tile]);
    bool is_stored = y < static_cast<uint32_t>(a.rows.extent) && x < static_cast<uint32_t>(a.columns.extent);
    if (is_stored && a.store_tiles == 0) {
        const int64_t line = int64_t{image} * a.rows.extent + y;
        is_stored = (a.bits[line * a.words_per_row + x / 32] >> (x % 32) & 1) != 0;
    }
    return {y << 16 | x, is_stored ? image : -1};
}

/** The quotient of numbers whose product is below 2^32; `factor` is 0 for the divisor 1. */
__device__ inline int32_t divide(int32_t number, uint32_t factor) {
    return factor == 0 ? number : static_cast<int32_t>(__umulhi(number, factor));
}

template<typename Element> __device__ inline float read_one(const char *from) {
    return to_float(*reinterpret_cast<const Element *>(from));
}
template<typename Element>
__device__ inline float4 read_quad(const char *from, int32_t channel, int32_t channels, bool at_once) {
    const auto *const elements = reinterpret_cast<const Element *>(from) + channel;
    if (at_once) {
        const auto four = *reinterpret_cast<const Vector<Element, 4> *>(elements);
        return {to_float(four.elements[0]), to_float(four.elements[1]), to_float(four.elements[2]),
                to_float(four.elements[3])};
    }
    const int32_t left = channels - channel;
    return {to_float(elements[0]), left > 1 ? to_float(elements[1]) : 0, left > 2 ? to_float(elements[2]) : 0,
            left > 3 ? to_float(elements[3]) : 0};
}

/** Numbers of a type that is known at run time. */
__device__ inline float4 read_quad(const Arguments &a, const char *from, int32_t channel) {
    const bool at_once = a.reads_quads != 0;
    switch (a.dtype) {
    case DISTILE_FLOAT16:
        return read_quad<__half>(from, channel, a.read_channels, at_once);
    case DISTILE_BFLOAT16:
        return read_quad<__nv_bfloat16>(from, channel, a.read_channels, at_once);
    default:
        return read_quad<float>(from, channel, a.read_channels, at_once);
    }
}
__device__ inline float read_one(const Arguments &a, const char *pixel, int32_t channel) {
    switch (a.dtype) {
    case DISTILE_FLOAT16:
        return to_float(reinterpret_cast<const __half *>(pixel)[channel]);
    case DISTILE_BFLOAT16:
        return to_float(reinterpret_cast<const __nv_bfloat16 *>(pixel)[channel]);
    default:
        return reinterpret_cast<const float *>(pixel)[channel];
    }
}
__device__ inline void write_one(const Arguments &a, char *pixel, int32_t channel, float value) {
    switch (a.dtype) {
    case DISTILE_FLOAT16:
        from_float(value, reinterpret_cast<__half *>(pixel)[channel]);
        break;
    case DISTILE_BFLOAT16:
        from_float(value, reinterpret_cast<__nv_bfloat16 *>(pixel)[channel]);
        break;
    default:
        reinterpret_cast<float *>(pixel)[channel] = value;
    }
}

/** Computes Pixels x Channels. */
template<int32_t Pixels, int32_t Channels> struct Product {
    static constexpr int32_t warps = warps_of(Channels), threads = warps * lanes, lane_pixels = Pixels / lanes,
                             warp_rows = Channels / warps, block_rows = DISTILE_CUDA_NONZERO_BLOCK;
    static constexpr int32_t column_bytes = lanes * 4, quad_channels = 4,
                             chunk_quads = DISTILE_CUDA_CHUNK_COLUMNS / quad_channels;
    /** The chunks that are staged at a time. */
    static constexpr int32_t staged_chunks = most_pixels / Pixels;
    /** A warp stages 8 quads of 4 pixels at a time. */
    static constexpr int32_t item_quads = 8, item_pixels = lanes / item_quads, pixel_groups = Pixels / item_pixels,
                             quad_groups = staged_chunks * chunk_quads / item_quads,
                             warp_items = pixel_groups * quad_groups / warps, items_at_once = 4;
    static_assert(Channels % warps == 0 && warps <= block_rows && warp_items % items_at_once == 0);
    static_assert(staged_chunks * DISTILE_CUDA_CHUNK_STRIDE * Pixels == staged_floats);

    struct Shared {
        float pool[pool_floats];
        uint4 batches[warps][batch_pairs];
        Pixel pixels[Pixels];
    };
    static_assert(sizeof(Shared) == shared_bytes(Pixels, Channels));

    const Arguments &a;
    Shared &shared;
    int32_t warp, lane;
    int32_t section, first_block;  ///< The section, and its first block here.
    float sums[warp_rows][lane_pixels];

    __device__ Product(const Arguments &arguments, Shared &memory, int32_t index)
        : a(arguments), shared(memory), warp(static_cast<int32_t>(threadIdx.x) / lanes),
          lane(static_cast<int32_t>(threadIdx.x) % lanes), sums{} {
        constexpr int32_t blocks = Channels / block_rows;
        const int32_t parts = (a.section_blocks + blocks - 1) / blocks;
        section = index / parts;
        first_block = index % parts * blocks;
    }

    /** The row of the block that a warp multiplies: in turns from the first warp to the last and back, because rows of
     * 16 are ordered by their lengths. */
    __device__ int32_t row_of(int32_t turn) const {
        return turn * warps + (turn % 2 == 0 ? warp : warps - 1 - warp);
    }
    /** Its place among the rows of the weights; -1 behind the section's last. */
    __device__ int32_t place_of(int32_t row) const {
        const int32_t block = first_block + row / block_rows;
        return block < a.section_blocks ? (section * a.section_blocks + block) * block_rows + row % block_rows : -1;
    }

    /** Stages chunks from one on. */
    __device__ void stage(int32_t first_chunk) const {
        const int32_t first_channel = min(section * a.read_channels, a.in_channels - a.read_channels);
        const int32_t element = a.dtype == DISTILE_FLOAT32 ? 4 : 2;
#pragma unroll 1
        for (int32_t done = 0; done < warp_items; done += items_at_once) {
            float4 values[items_at_once];
#pragma unroll
            for (int32_t i = 0; i < items_at_once; i++) {
                const int32_t item = warp + (done + i) * warps;
                const Pixel pixel = shared.pixels[item % pixel_groups * item_pixels + lane / item_quads];
                const int32_t quad = first_chunk * chunk_quads + item / pixel_groups * item_quads + lane % item_quads;
                const int32_t tap = divide(quad, a.quad_factor), tap_y = divide(tap, a.column_factor),
                              tap_x = tap - tap_y * a.columns.taps,
                              channel = (quad - tap * a.tap_quads) * quad_channels;
                const int32_t y = pixel.y() * a.rows.stride + a.rows.first + tap_y * a.rows.step,
                              x = pixel.x() * a.columns.stride + a.columns.first + tap_x * a.columns.step;
                const bool is_in = pixel.is_stored() && quad < a.quads && y >= a.rows.begin && y < a.rows.end &&
                                   x >= a.columns.begin && x < a.columns.end;
                values[i] =
                    is_in ? read_quad(a,
                                      a.input.data + pixel.image * a.input.stride_n + int64_t{y} * a.input.stride_h +
                                          int64_t{x} * a.input.stride_w + first_channel * element,
                                      channel)
                          : float4{0, 0, 0, 0};
            }
#pragma unroll
            for (int32_t i = 0; i < items_at_once; i++) {
                const int32_t item = warp + (done + i) * warps, group = item / pixel_groups;
                const int32_t pixel = item % pixel_groups * item_pixels + lane / item_quads;
                const int32_t chunk = group * item_quads / chunk_quads,
                              column =
                                  group * item_quads % chunk_quads * quad_channels + lane % item_quads * quad_channels;
                float *const to = shared.pool + (chunk * DISTILE_CUDA_CHUNK_STRIDE + column) * Pixels +
                                  (pixel ^ lane % item_quads * quad_channels);
                to[0] = values[i].x;
                to[Pixels] = values[i].y;
                to[2 * Pixels] = values[i].z;
                to[3 * Pixels] = values[i].w;
            }
        }
    }

    /** Adds the products of `pairs` pairs of a batch to a row's sums. `base` is where chunk 0 would be staged. */
    template<int32_t Pairs>
    __device__ void multiply_pairs(const uint4 *batch, const char *base, float (&row)[lane_pixels]) const {
        constexpr int32_t low_bits = column_bytes - 1;
        const uint32_t position = lane * lane_pixels * 4, low = position & low_bits, high = position & ~low_bits;
        Vector<float, lane_pixels> columns[2 * Pairs];
        float weights[2 * Pairs];
#pragma unroll
        for (int32_t i = 0; i < Pairs; i++) {
            const uint4 pair = batch[i];
            const uint32_t places[2] = {pair.x, pair.z};
            weights[2 * i] = __uint_as_float(pair.y);
            weights[2 * i + 1] = __uint_as_float(pair.w);
#pragma unroll
            for (int32_t j = 0; j < 2; j++) {
                const uint32_t at =
                    (places[j] ^ low) + (lane_pixels > 1 ? (places[j] & ~low_bits) * (lane_pixels - 1) + high : 0);
                columns[2 * i + j] = *reinterpret_cast<const Vector<float, lane_pixels> *>(base + at);
            }
        }
#pragma unroll
        for (int32_t i = 0; i < 2 * Pairs; i++) {
#pragma unroll
            for (int32_t p = 0; p < lane_pixels; p++) {
                row[p] = fmaf(weights[i], columns[i].elements[p], row[p]);
            }
        }
    }

    /** Pairs of the weights. */
    struct Range {
        uint32_t begin, end;
    };
    /** What is staged multiplies these of the row that a warp multiplies in the turn with the lane's number. */
    __device__ Range range_of(int32_t first_chunk) const {
        const int32_t place = lane < warp_rows ? place_of(row_of(lane)) : -1;
        if (place < 0) {
            return {0, 0};
        }
        const uint32_t *const starts = a.weights.starts + int64_t{place} * a.chunks;
        return {starts[first_chunk], starts[min(first_chunk + staged_chunks, a.chunks)]};
    }
    __device__ uint4 load_pair(uint32_t first) const {
        return __ldg(reinterpret_cast<const uint4 *>(a.weights.pairs) + first + lane);
    }

    /** Multiplies what is staged. */
    __device__ void multiply(int32_t first_chunk, const Range &range, uint4 first_pair) {
        const char *const base = reinterpret_cast<const char *>(shared.pool) -
                                 int64_t{first_chunk} * DISTILE_CUDA_CHUNK_STRIDE * column_bytes * lane_pixels;
        uint4 *const batch = shared.batches[warp];
        uint4 pair = first_pair;
#pragma unroll
        for (int32_t turn = 0; turn < warp_rows; turn++) {
            const uint32_t end = __shfl_sync(whole_warp, range.end, turn);
            const uint4 next =
                turn + 1 < warp_rows ? load_pair(__shfl_sync(whole_warp, range.begin, turn + 1)) : uint4{};
#pragma unroll 1
            for (uint32_t begin = __shfl_sync(whole_warp, range.begin, turn); begin < end; begin += batch_pairs) {
                __syncwarp();
                batch[lane] = pair;
                __syncwarp();
                if (begin + batch_pairs < end) {
                    pair = load_pair(begin + batch_pairs);
                }
                const uint4 *from = batch;
                int32_t left = static_cast<int32_t>(min(end - begin, uint32_t{batch_pairs}));
#pragma unroll 1
                for (; left >= 4; left -= 4, from += 4) {
                    multiply_pairs<4>(from, base, sums[turn]);
                }
                if (left >= 2) {
                    multiply_pairs<2>(from, base, sums[turn]);
                    from += 2;
                }
                if (left % 2 != 0) {
                    multiply_pairs<1>(from, base, sums[turn]);
                }
            }
            pair = next;
        }
    }

    /** Puts the sums into shared memory, [output channel][pixel]. */
    __device__ void turn_sums() const {
#pragma unroll
        for (int32_t turn = 0; turn < warp_rows; turn++) {
            const int32_t row = row_of(turn), place = place_of(row);
            if (place >= 0) {
                const int32_t channel = row / block_rows * block_rows + a.weights.order[place];
                auto *const to =
                    reinterpret_cast<Vector<float, lane_pixels> *>(shared.pool + channel * (Pixels + output_padding)) +
                    lane;
                Vector<float, lane_pixels> vector;
#pragma unroll
                for (int32_t p = 0; p < lane_pixels; p++) {
                    vector.elements[p] = sums[turn][p];
                }
                *to = vector;
            }
        }
    }
    __device__ void store() const {
        constexpr int32_t store_channels = 8, store_pixels = lanes / store_channels,
                          channel_groups = Channels / store_channels;
        constexpr int32_t items = channel_groups * (Pixels / store_pixels);
#pragma unroll 1
        for (int32_t item = warp; item < items; item += warps) {
            const int32_t channel = item % channel_groups * store_channels + lane % store_channels,
                          index = item / channel_groups * store_pixels + lane / store_channels;
            const Pixel pixel = shared.pixels[index];
            const int32_t in_section = first_block * block_rows + channel,
                          output = section * a.section_channels + in_section;
            if (!pixel.is_stored() || in_section >= a.section_channels || output >= a.out_channels) {
                continue;
            }
            float value = shared.pool[channel * (Pixels + output_padding) + index] + a.bias[output];
            if (a.residual.data) {
                value += read_one(a, pixel.in(a.residual), output);
            }
            value = activate_one(value, {static_cast<distile_activation>(a.epilogue), a.slope});
            write_one(a, pixel.in(a.output), output, value);
        }
    }

    __device__ static void run(const Arguments &a) {
        extern __shared__ __align__(128) char memory[];
        constexpr int32_t blocks = Channels / block_rows;
        const int32_t sections = (a.out_channels + a.section_channels - 1) / a.section_channels,
                      parts = sections * ((a.section_blocks + blocks - 1) / blocks);
        const uint32_t first_pixel = blockIdx.x / parts * Pixels, count = *a.count;
        if (first_pixel / (a.rows.tile * a.columns.tile) >= count) {
            return;
        }
        Product product(a, *reinterpret_cast<Shared *>(memory), static_cast<int32_t>(blockIdx.x % parts));
        product.compute(first_pixel, count);
    }
    __device__ void compute(uint32_t first_pixel, uint32_t count) {
        if (threadIdx.x < Pixels) {
            shared.pixels[threadIdx.x] = pixel_of(a, first_pixel + threadIdx.x, count);
        }
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < staged_chunks * Pixels; i += threads) {
            shared.pool[(i / Pixels * DISTILE_CUDA_CHUNK_STRIDE + DISTILE_CUDA_CHUNK_COLUMNS) * Pixels + i % Pixels] =
                0;
        }
        for (int32_t chunk = 0; chunk < a.chunks; chunk += staged_chunks) {
            const Range range = range_of(chunk);
            const uint4 first_pair = load_pair(__shfl_sync(whole_warp, range.begin, 0));
            __syncthreads();
            stage(chunk);
            __syncthreads();
            multiply(chunk, range, first_pair);
        }
        __syncthreads();
        turn_sums();
        __syncthreads();
        store();
    }
};

#define DISTILE_KERNEL(pixels, channels)                                                                               \
    extern "C" __global__ void __launch_bounds__(Product<pixels, channels>::threads, (channels) <= 32 ? 3 : 2)         \
        distile_nonzeros_##pixels##_##channels(const __grid_constant__ Arguments arguments) {                          \
        Product<pixels, channels>::run(arguments);                                                                     \
    }
DISTILE_KERNEL(32, 16)
DISTILE_KERNEL(32, 32)
DISTILE_KERNEL(32, 64)
DISTILE_KERNEL(32, 128)
DISTILE_KERNEL(64, 16)
DISTILE_KERNEL(64, 32)
DISTILE_KERNEL(64, 64)
DISTILE_KERNEL(64, 128)
DISTILE_KERNEL(128, 16)
DISTILE_KERNEL(128, 32)
DISTILE_KERNEL(128, 64)
DISTILE_KERNEL(128, 128)
#undef DISTILE_KERNEL

}  // namespace distile::cuda_nonzeros
