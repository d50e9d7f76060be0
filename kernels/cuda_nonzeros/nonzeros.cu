// Products with the nonzero weights alone, in float32 (distile_cuda_nonzero_weights in kernels/dot_products.h). The
// kernels read the operator at run time, so one unit serves all.
//
// A block of threads computes some output pixels and channels. What these pixels read is staged in shared memory, some
// chunks of the reduction at a time: columns of pixels, of which a lane has 1, 2 or 4 neighbours. A warp multiplies one
// row of the weights after the other, whose sums stay in registers: all lanes read the same weight, and the column that
// it multiplies. Reading columns is what takes the time: a multiprocessor reads 32 numbers in a cycle.
#include "kernels/cuda_nonzeros/arguments.h"
#include "kernels/cuda_nonzeros/listed_pixels.cuh"
#include "runtime/cuda/kernels/activations.cuh"
#include "runtime/cuda/kernels/elements.cuh"

namespace distile::cuda_nonzeros {

constexpr uint32_t whole_warp = 0xffffffff;

/** The quotient of numbers whose product is below 2^32; `factor` is 0 for the divisor 1. */
__device__ inline int32_t divide(int32_t number, uint32_t factor) {
    return factor == 0 ? number : static_cast<int32_t>(__umulhi(number, factor));
}

/** Four neighbouring channels, if there are as many. */
template<typename Element> __device__ inline float4 read_quad(const char *from, int32_t channels, bool at_once) {
    const auto *const elements = reinterpret_cast<const Element *>(from);
    if (at_once) {
        const auto four = *reinterpret_cast<const Vector<Element, 4> *>(elements);
        return {to_float(four.elements[0]), to_float(four.elements[1]), to_float(four.elements[2]),
                to_float(four.elements[3])};
    }
    return {to_float(elements[0]), channels > 1 ? to_float(elements[1]) : 0, channels > 2 ? to_float(elements[2]) : 0,
            channels > 3 ? to_float(elements[3]) : 0};
}
/** Numbers of a type that is known at run time. Not inlined: instructions that a block fetches first take it long. */
static __noinline__ __device__ float4 read_quad(const Arguments &a, const char *from, int32_t channels) {
    const bool at_once = a.reads_quads != 0;
    switch (a.dtype) {
    case DISTILE_FLOAT16:
        return read_quad<__half>(from, channels, at_once);
    case DISTILE_BFLOAT16:
        return read_quad<__nv_bfloat16>(from, channels, at_once);
    default:
        return read_quad<float>(from, channels, at_once);
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

template<int32_t Pixels, int32_t Channels> struct SharedMemory {
    static constexpr int32_t warps = warps_of(Pixels, Channels), warp_rows = most_pixels / Pixels,
                             batch_pairs = batch_pairs_of(Pixels), staged_quads = staged_quads_of(Pixels);

    float pool[pool_floats];
    // Rows that a warp multiplies at once have theirs in other banks.
    uint4 batches[warps][warp_rows][batch_pairs + 1];
    int4 quads[staged_quads];  ///< Offset in elements, row and column from the pixel of the first tap; channels from
                               ///< here.
    Pixel pixels[Pixels];
    float bias[Channels];
    int32_t is_last;
};

/** Computes Pixels x Channels, of some of the chunks of the reduction. */
template<int32_t Pixels, int32_t Channels> struct Product {
    using Shared = SharedMemory<Pixels, Channels>;
    static constexpr int32_t warps = warps_of(Pixels, Channels), threads = warps * lanes,
                             block_rows = DISTILE_CUDA_NONZERO_BLOCK;
    /** Lanes have neighbouring pixels, as many as one load. A warp multiplies several rows at once, if it can. */
    static constexpr int32_t lane_pixels = 4, row_lanes = Pixels / lane_pixels, warp_rows = lanes / row_lanes,
                             rows_at_once = warps * warp_rows, turns = (Channels + rows_at_once - 1) / rows_at_once;
    static constexpr int32_t batch_pairs = Shared::batch_pairs, lane_pairs = batch_pairs / row_lanes;
    static constexpr int32_t column_bytes = 128, quad_channels = 4,
                             chunk_quads = DISTILE_CUDA_CHUNK_COLUMNS / quad_channels;
    /** The chunks that are staged at a time. */
    static constexpr int32_t staged_chunks = most_pixels / Pixels, staged_quads = Shared::staged_quads;
    /** A warp stages 8 quads of 4 pixels at a time. */
    static constexpr int32_t item_quads = 8, item_pixels = lanes / item_quads, pixel_groups = Pixels / item_pixels,
                             quad_groups = staged_quads / item_quads,
                             groups_at_once = warps < pixel_groups ? warps : pixel_groups,
                             group_warps = warps / groups_at_once, warp_items = quad_groups / group_warps,
                             most_items = warps < 16 ? 16 : 4,
                             items_at_once = warp_items < most_items ? warp_items : most_items;
    static_assert((turns == 1 || Channels % rows_at_once == 0) && lane_pairs * row_lanes == batch_pairs &&
                  batch_pairs % 4 == 0);
    static_assert(pixel_groups % groups_at_once == 0 && warp_items % items_at_once == 0);
    static_assert(staged_chunks * DISTILE_CUDA_CHUNK_STRIDE * Pixels == staged_floats);

    static_assert(sizeof(Shared) == shared_bytes(Pixels, Channels));
    static_assert(part_bytes(Pixels, Channels) == turns * threads * 16);

    using Sums = Vector<float, lane_pixels>;

    const Arguments &a;
    Shared &shared;
    int32_t warp, lane;
    int32_t section, first_block;  ///< The section, and its first block here.
    Sums sums[turns];
    int32_t order[turns];  ///< The channels in their blocks of the rows that a lane multiplies.
    float bias;            ///< The output channel with the thread's number has it.

    __device__ Product(const Arguments &arguments, Shared &memory, int32_t part)
        : a(arguments), shared(memory), warp(static_cast<int32_t>(threadIdx.x) / lanes),
          lane(static_cast<int32_t>(threadIdx.x) % lanes), sums{} {
        section = divide(part, a.part_factor);
        first_block = (part - section * a.section_parts) * (Channels / block_rows);
    }

    /** The row that a lane multiplies in a turn: rows of 16 are ordered by their lengths, so every other turn goes
     * through the warps the other way. */
    __device__ int32_t row_of(int32_t turn) const {
        const int32_t index = warp * warp_rows + lane / row_lanes;
        return turn * rows_at_once + (turn % 2 == 0 ? index : rows_at_once - 1 - index);
    }
    /** Its place among the rows of the weights; -1 behind the section's last. */
    __device__ int32_t place_of(int32_t row) const {
        const int32_t block = first_block + row / block_rows;
        return row < Channels && block < a.section_blocks
                   ? (section * a.section_blocks + block) * block_rows + row % block_rows
                   : -1;
    }

    /** Finds where the quads are that are staged next. */
    __device__ void find_quads(int32_t first_chunk) const {
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < staged_quads; i += threads) {
            const int32_t quad = first_chunk * chunk_quads + i, tap = divide(quad, a.quad_factor),
                          tap_y = divide(tap, a.column_factor), tap_x = tap - tap_y * a.columns.taps;
            const int32_t channel = (quad - tap * a.tap_quads) * quad_channels, y = tap_y * a.rows.step,
                          x = tap_x * a.columns.step;
            const int32_t first_channel = min(section * a.read_channels, a.in_channels - a.read_channels);
            const int32_t element = a.dtype == DISTILE_FLOAT32 ? 4 : 2;
            const int32_t offset =
                y * (a.input.stride_h / element) + x * (a.input.stride_w / element) + first_channel + channel;
            // What lies behind the last is beyond every input.
            constexpr int32_t beyond = 1 << 30;
            shared.quads[i] = int4{offset, quad < a.quads ? y : beyond, x, a.read_channels - channel};
        }
    }

    /** Stages chunks. `read` reads the quad at an offset from an address, and is told how many channels are left there.
     */
    template<int32_t items_at_once, typename Read> __device__ void stage(const Read &read) const {
        const int32_t in_item = lane % item_quads;
#pragma unroll 1
        for (int32_t group = warp % groups_at_once; group < pixel_groups; group += groups_at_once) {
            const int32_t index = group * item_pixels + lane / item_quads;
            const Pixel pixel = shared.pixels[index];
            const int32_t y = pixel.y() * a.rows.stride + a.rows.first,
                          x = pixel.x() * a.columns.stride + a.columns.first;
            const char *const from = a.input.data + pixel.image * a.input.stride_n + int64_t{y} * a.input.stride_h +
                                     int64_t{x} * a.input.stride_w;
            // Compared without a sign, what lies before the first pixel lies behind the last.
            const auto height = static_cast<uint32_t>(pixel.is_there() ? a.rows.end - a.rows.begin : 0),
                       width = static_cast<uint32_t>(a.columns.end - a.columns.begin);
            const int32_t top = y - a.rows.begin, left = x - a.columns.begin;
            float *const to = shared.pool + in_item * quad_channels * Pixels + (index ^ in_item * quad_channels);
#pragma unroll 1
            for (int32_t first = warp / groups_at_once; first < quad_groups; first += group_warps * items_at_once) {
                float4 values[items_at_once];
#pragma unroll
                for (int32_t i = 0; i < items_at_once; i++) {
                    const int4 quad = shared.quads[(first + i * group_warps) * item_quads + in_item];
                    values[i] = {0, 0, 0, 0};
                    if (static_cast<uint32_t>(top + quad.y) < height && static_cast<uint32_t>(left + quad.z) < width) {
                        values[i] = read(from, quad.x, quad.w);
                    }
                }
#pragma unroll
                for (int32_t i = 0; i < items_at_once; i++) {
                    const int32_t column = (first + i * group_warps) * item_quads * quad_channels;
                    float *const at = to + (column + column / DISTILE_CUDA_CHUNK_COLUMNS) * Pixels;
                    at[0] = values[i].x;
                    at[Pixels] = values[i].y;
                    at[2 * Pixels] = values[i].z;
                    at[3 * Pixels] = values[i].w;
                }
            }
        }
    }
    __device__ void stage() const {
        if (a.dtype == DISTILE_FLOAT32 && a.reads_quads != 0) {
            stage<items_at_once>([](const char *from, int32_t offset, int32_t) {
                return *reinterpret_cast<const float4 *>(from + int64_t{offset} * 4);
            });
        } else {
            stage<1>([this](const char *from, int32_t offset, int32_t channels) {
                return read_quad(a, from + int64_t{offset} * (a.dtype == DISTILE_FLOAT32 ? 4 : 2), channels);
            });
        }
    }

    /** Adds the products of pairs of a batch to a row's sums. `base` is where chunk 0 would be staged. */
    template<int32_t Pairs> __device__ void multiply_pairs(const uint4 *batch, const char *base, Sums &row) const {
        constexpr uint32_t low_bits = column_bytes - 1;
        const uint32_t position = lane % row_lanes * sizeof(Sums), low = position & low_bits,
                       high = position & ~low_bits;
        Sums columns[2 * Pairs];
        float weights[2 * Pairs];
#pragma unroll
        for (int32_t i = 0; i < Pairs; i++) {
            const uint4 pair = batch[i];
            const uint32_t places[2] = {pair.x, pair.z};
            weights[2 * i] = __uint_as_float(pair.y);
            weights[2 * i + 1] = __uint_as_float(pair.w);
#pragma unroll
            for (int32_t j = 0; j < 2; j++) {
                constexpr uint32_t more = Pixels * 4 / column_bytes - 1;
                const uint32_t at = (places[j] ^ low) + (more > 0 ? (places[j] & ~low_bits) * more + high : 0);
                columns[2 * i + j] = *reinterpret_cast<const Sums *>(base + at);
            }
        }
#pragma unroll
        for (int32_t i = 0; i < 2 * Pairs; i++) {
#pragma unroll
            for (int32_t p = 0; p < lane_pixels; p++) {
                row.elements[p] = fmaf(weights[i], columns[i].elements[p], row.elements[p]);
            }
        }
    }

    /** Pairs of the weights, which chunks multiply. */
    struct Range {
        uint32_t begin, end;
    };
    __device__ Range range_of(int32_t turn, int32_t first_chunk, int32_t last_chunk) const {
        const int32_t place = place_of(row_of(turn));
        const uint32_t *const starts = a.weights.starts + int64_t{place} * a.chunks;
        return place >= 0 ? Range{starts[first_chunk], starts[last_chunk]} : Range{0, 0};
    }
    /** What a lane reads of a batch. As many pairs as a batch has follow the last of the weights. */
    struct Batch {
        uint4 pairs[lane_pairs];
    };
    __device__ Batch load_batch(uint32_t first) const {
        Batch batch;
#pragma unroll
        for (int32_t i = 0; i < lane_pairs; i++) {
            batch.pairs[i] =
                __ldg(reinterpret_cast<const uint4 *>(a.weights.pairs) + first + lane % row_lanes + i * row_lanes);
        }
        return batch;
    }

    /** Multiplies what is staged. `first` is the first batch of the first turn. */
    __device__ void multiply(int32_t first_chunk, const Range (&ranges)[turns], const Batch &first) {
        const char *const base =
            reinterpret_cast<const char *>(shared.pool) - int64_t{first_chunk} * DISTILE_CUDA_CHUNK_STRIDE * Pixels * 4;
        const uint32_t zeros = (first_chunk * DISTILE_CUDA_CHUNK_STRIDE + DISTILE_CUDA_CHUNK_COLUMNS) * column_bytes;
        uint4 *const memory = shared.batches[warp][lane / row_lanes];
        Batch batch = first;
#pragma unroll
        for (int32_t turn = 0; turn < turns; turn++) {
            const Range range = ranges[turn];
            const Batch next = turn + 1 < turns ? load_batch(ranges[turn + 1].begin) : Batch{};
            auto left = static_cast<int32_t>(range.end - range.begin);
            int32_t most = __reduce_max_sync(whole_warp, left);
#pragma unroll 1
            for (uint32_t begin = range.begin; most > 0; most -= batch_pairs, left -= batch_pairs) {
                __syncwarp();
#pragma unroll
                for (int32_t i = 0; i < lane_pairs; i++) {
                    const int32_t index = lane % row_lanes + i * row_lanes;
                    memory[index] = index < left ? batch.pairs[i] : uint4{zeros, 0, zeros, 0};
                }
                __syncwarp();
                begin += batch_pairs;
                if (left > batch_pairs) {
                    batch = load_batch(begin);
                }
                // A pair of zeros follows an odd number of them.
                const int32_t count = (min(most, batch_pairs) + 1) / 2 * 2;
                int32_t i = 0;
#pragma unroll 1
                for (; i + 4 <= count; i += 4) {
                    multiply_pairs<4>(memory + i, base, sums[turn]);
                }
                if (i < count) {
                    multiply_pairs<2>(memory + i, base, sums[turn]);
                }
            }
            batch = next;
        }
    }

    /** Whether this block has the sums of all chunks now: it is the last of those that share an output. They add in the
     * order of their chunks, whoever is the last. */
    __device__ bool join(int32_t output, int32_t split) {
        auto *const parts =
            reinterpret_cast<float4 *>(a.parts) + int64_t{output} * a.splits * turns * threads + threadIdx.x;
#pragma unroll
        for (int32_t turn = 0; turn < turns; turn++) {
            const Sums &own = sums[turn];
            __stcg(parts + (split * turns + turn) * threads,
                   float4{own.elements[0], own.elements[1], own.elements[2], own.elements[3]});
        }
        if (!is_last_of(a, output, shared.is_last)) {
            return false;
        }
#pragma unroll
        for (int32_t turn = 0; turn < turns; turn++) {
            sums[turn] = {};
        }
        for (int32_t other = 0; other < a.splits; other++) {
#pragma unroll
            for (int32_t turn = 0; turn < turns; turn++) {
                const float4 part = __ldcg(parts + (other * turns + turn) * threads);
                sums[turn].elements[0] += part.x;
                sums[turn].elements[1] += part.y;
                sums[turn].elements[2] += part.z;
                sums[turn].elements[3] += part.w;
            }
        }
        return true;
    }

    /** Puts the sums into shared memory, [output channel][pixel]. */
    __device__ void turn_sums() const {
#pragma unroll
        for (int32_t turn = 0; turn < turns; turn++) {
            const int32_t row = row_of(turn);
            if (place_of(row) >= 0) {
                const int32_t channel = row / block_rows * block_rows + order[turn];
                *(reinterpret_cast<Sums *>(shared.pool + channel * (Pixels + output_padding)) + lane % row_lanes) =
                    sums[turn];
            }
        }
        if (threadIdx.x < Channels) {
            shared.bias[threadIdx.x] = bias;
        }
    }
    __device__ void store() const {
        constexpr int32_t store_channels = 8, store_pixels = lanes / store_channels,
                          channel_groups = Channels / store_channels;
        constexpr int32_t items = channel_groups * (Pixels / store_pixels);
        static_assert(items % warps == 0);
#pragma unroll 1
        for (int32_t item = warp; item < items; item += warps) {
            const int32_t channel = item % channel_groups * store_channels + lane % store_channels,
                          index = item / channel_groups * store_pixels + lane / store_channels;
            const Pixel pixel = shared.pixels[index];
            const int32_t in_section = first_block * block_rows + channel,
                          output = section * a.section_channels + in_section;
            if (!pixel.is_there() || in_section >= a.section_channels || output >= a.out_channels) {
                continue;
            }
            float value = shared.pool[channel * (Pixels + output_padding) + index] + shared.bias[channel];
            if (a.residual.data) {
                value += read_one(a, pixel.in(a.residual), output);
            }
            if (a.epilogue != DISTILE_ACTIVATION_NONE) {
                value = activate_one(value, {static_cast<distile_activation>(a.epilogue), a.slope});
            }
            write_one(a, pixel.in(a.output), output, value);
        }
    }

    __device__ static void run(const Arguments &a) {
        extern __shared__ __align__(128) char memory[];
        Product product(a, *reinterpret_cast<Shared *>(memory), static_cast<int32_t>(blockIdx.y));
        product.compute();
    }
    /** Reads what the last results need, long before. */
    __device__ void read_ahead() {
#pragma unroll
        for (int32_t turn = 0; turn < turns; turn++) {
            const int32_t place = place_of(row_of(turn));
            order[turn] = place >= 0 ? __ldg(a.weights.order + place) : 0;
        }
        const int32_t in_section = first_block * block_rows + static_cast<int32_t>(threadIdx.x),
                      output = section * a.section_channels + in_section;
        const bool has_bias = threadIdx.x < Channels && in_section < a.section_channels && output < a.out_channels;
        bias = has_bias ? __ldg(a.bias + output) : 0;
    }
    __device__ void find_ranges(int32_t first_chunk, int32_t last_chunk, Range (&ranges)[turns]) const {
#pragma unroll
        for (int32_t turn = 0; turn < turns; turn++) {
            ranges[turn] = range_of(turn, first_chunk, min(first_chunk + staged_chunks, last_chunk));
        }
    }
    __device__ void compute() {
        // What is read takes long to come, so all is asked for that can be, before the first of it is used.
        const uint32_t first_pixel = blockIdx.x * Pixels;
        const Listed listed =
            threadIdx.x < Pixels ? listed_of(a, first_pixel + threadIdx.x) : Listed{0xffffffff, 0, 0, 0, -1};
        const uint32_t count = *a.count;
        const auto split = static_cast<int32_t>(blockIdx.z);
        int32_t chunk = divide(split * a.chunks, a.split_factor);
        const int32_t last_chunk = divide((split + 1) * a.chunks, a.split_factor);
        Range ranges[turns];
        find_ranges(chunk, last_chunk, ranges);
        read_ahead();
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < staged_chunks * Pixels; i += threads) {
            shared.pool[(i / Pixels * DISTILE_CUDA_CHUNK_STRIDE + DISTILE_CUDA_CHUNK_COLUMNS) * Pixels + i % Pixels] =
                0;
        }
        find_quads(chunk);
        if (first_pixel >= int64_t{count} * (a.rows.tile * a.columns.tile)) {
            return;
        }
        Pixel pixel = pixel_of(a, listed, count);
        if (threadIdx.x < Pixels) {
            shared.pixels[threadIdx.x] = pixel;
        }
        // Inactive pixels of a tile are computed as well. Whether to store them is known later.
        const uint32_t word = word_of(a, pixel);
        Batch first = load_batch(ranges[0].begin);
        while (true) {
            __syncthreads();
            stage();
            __syncthreads();
            multiply(chunk, ranges, first);
            chunk += staged_chunks;
            if (chunk >= last_chunk) {
                break;
            }
            find_ranges(chunk, last_chunk, ranges);
            find_quads(chunk);
            first = load_batch(ranges[0].begin);
        }
        if (a.splits > 1 && !join(static_cast<int32_t>(blockIdx.x * gridDim.y + blockIdx.y), split)) {
            return;
        }
        __syncthreads();
        if (threadIdx.x < Pixels && (word >> (pixel.x() % 32) & 1) == 0) {
            shared.pixels[threadIdx.x].image = -1;
        }
        turn_sums();
        __syncthreads();
        store();
    }
};

#define DISTILE_KERNEL(pixels, channels)                                                                               \
    extern "C" __global__ void __launch_bounds__(Product<pixels, channels>::threads, blocks_of(pixels, channels))      \
        distile_nonzeros_##pixels##_##channels(const __grid_constant__ Arguments arguments) {                          \
        Product<pixels, channels>::run(arguments);                                                                     \
    }
DISTILE_CUDA_NONZERO_KERNELS(DISTILE_KERNEL)
#undef DISTILE_KERNEL

}  // namespace distile::cuda_nonzeros
