/** \file
 * Linear layers with pruned weights of 16 bits by tensor cores (distile_cuda_bitmap_weights in kernels/bitmap.h). The
 * kernels read the operator at run time, so one unit serves all.
 *
 * With few pixels, reading the weights takes the time. A block of threads computes some output pixels and channels. A
 * warp has 16 of the channels, of some of the reduction, and its sums stay in registers. What lanes need is in the
 * order of the lanes: each loads the bits of its weights of a unit, and from their number knows where its values are.
 * These go through shared memory, because only memory can be read at a place that is computed: row p of a lane has
 * values p and p + 1, so that a pair of weights takes one load, whichever of them are 0, and lanes never meet in a
 * bank.
 */
#ifndef DISTILE_CUDA_BITMAP_BITMAP_CUH
#define DISTILE_CUDA_BITMAP_BITMAP_CUH

#include "kernels/cuda_bitmap/arguments.h"
#include "kernels/cuda_nonzeros/listed_pixels.cuh"
#include "kernels/tensor_core/mma.cuh"
#include "kernels/tensor_core/ptx.cuh"
#include "kernels/tensor_core/types.cuh"
#include "runtime/cuda/kernels/activations.cuh"
#include <type_traits>

namespace distile::cuda_bitmap {

using cuda_nonzeros::Listed;
using cuda_nonzeros::Pixel;

constexpr uint32_t whole_warp = 0xffffffff;

__device__ inline uint32_t load_shared(uint32_t from) {
    uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(from));
    return value;
}
__device__ inline uint4 load_shared_four(uint32_t from) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(from)
                 : "memory");
    return value;
}
__device__ inline void store_shared(uint32_t to, uint32_t value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(value));
}
/** Reads what nothing reads again. */
__device__ inline uint2 load_once(const uint2 *from) {
    uint2 value;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(from));
    return value;
}
__device__ inline void fetch_to_l2(const char *from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
__device__ inline uint32_t select_bytes(uint32_t from, uint32_t zeros, uint32_t selector) {
    uint32_t value;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(value) : "r"(from), "r"(zeros), "r"(selector));
    return value;
}
/** The two halves behind the first one. */
__device__ inline uint32_t middle_of(uint32_t low, uint32_t high) {
    return __funnelshift_r(low, high, 16);
}
__device__ inline void end_group_of_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/** Waits for all groups of copies but the last ones. */
template<int32_t Last> __device__ inline void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Last) : "memory");
}
__device__ inline void store_shared_four(uint32_t to, uint4 value) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
}

struct SharedMemory {
    uint4 input[pieces][piece_bytes / sizeof(uint4)];
    uint32_t values[warps][value_rows][lanes];
    Pixel pixels[most_pixels];
    const char *rows[most_pixels];  ///< The input of each pixel; null without one.
    int32_t is_last;
};
static_assert(sizeof(SharedMemory) <= shared_bytes);

/** Computes Pixels output pixels of 16-bit numbers, of some of the units of the reduction. */
template<class Element, int32_t Pixels> struct Product {
    static constexpr int32_t unit_rows = DISTILE_BITMAP_ROWS, unit_columns = DISTILE_BITMAP_COLUMNS, element_bytes = 2,
                             chunk_channels = 8, unit_chunks = unit_columns / chunk_channels;
    static constexpr int32_t piece_units = piece_units_of(Pixels), row_chunks = piece_units * unit_chunks,
                             row_bytes = row_chunks * 16, column_tiles = Pixels / 8;
    static constexpr int32_t granule = DISTILE_BITMAP_GRANULE, most_granules = 64 / granule;
    static constexpr int32_t value_row_bytes = lanes * 4;

    /** What is known of a unit's weights before they are loaded. */
    struct Unit {
        uint2 bits;
        uint32_t start;
    };
    /** The values of a lane's weights. */
    struct Values {
        uint2 granules[most_granules];
        int32_t most;  ///< Granules of the lane that has most.
    };

    const Arguments &a;
    SharedMemory &shared;
    int32_t warp, lane;
    int32_t parts, part;  ///< Warps that share these rows, and which one this is.
    int32_t row_unit;     ///< The 16 output channels; -1 behind the last.
    uint32_t own_values;  ///< Where the lane has its values in shared memory.
    float sums[column_tiles][4];

    __device__ Product(const Arguments &arguments, SharedMemory &memory)
        : a(arguments), shared(memory), warp(static_cast<int32_t>(tensor_core::uniform(threadIdx.x / lanes))),
          lane(static_cast<int32_t>(threadIdx.x) % lanes), sums{} {
        const int32_t block_units = a.channels / unit_rows;
        parts = warps / block_units;
        part = warp / block_units;
        row_unit = static_cast<int32_t>(blockIdx.y) * block_units + warp % block_units;
        row_unit = row_unit * unit_rows < a.out_channels ? row_unit : -1;
        own_values = tensor_core::shared_address(&shared.values[warp][0][lane]);
    }

    /** Whether the unit is one that this warp multiplies. */
    __device__ bool is_in(int32_t unit, int32_t last) const {
        return row_unit >= 0 && unit < last;
    }
    __device__ Unit unit_at(int32_t unit, int32_t last) const {
        if (!is_in(unit, last)) {
            return {{0, 0}, 0};
        }
        const int64_t index = int64_t{row_unit} * a.units + unit;
        return {load_once(reinterpret_cast<const uint2 *>(a.weights.bits) + index * lanes + lane),
                __ldg(a.weights.starts + index)};
    }
    /** Where a unit's values begin and end, in granules. */
    __device__ uint2 range_at(int32_t unit, int32_t last) const {
        if (a.ahead == 0 || !is_in(unit, last)) {
            return {0, 0};
        }
        const uint32_t *const starts = a.weights.starts + int64_t{row_unit} * a.units + unit;
        return {__ldg(starts), __ldg(starts + 1)};
    }
    /** Fetches the weights of a unit to the L2 cache. */
    __device__ void fetch(int32_t unit, int32_t last, uint2 range) const {
        constexpr uint32_t line = 128, granule_bytes = 8;
        if (a.ahead == 0 || !is_in(unit, last)) {
            return;
        }
        const uint32_t bytes = (range.y - range.x) * granule_bytes;
        const char *const from = a.weights.values + int64_t{range.x} * granule_bytes;
        for (uint32_t at = lane * line; at < bytes; at += lanes * line) {
            fetch_to_l2(from + at);
        }
        if (lane < 2) {
            fetch_to_l2(reinterpret_cast<const char *>(a.weights.bits) +
                        (int64_t{row_unit} * a.units + unit) * 2 * line + lane * line);
        }
    }

    /** Loads the values of a unit: the first granules of all lanes that have one, then the second ones, and so on. */
    __device__ void load(const Unit &unit, Values &values) const {
        const int32_t count = (__popc(unit.bits.x) + __popc(unit.bits.y) + granule - 1) / granule;
        constexpr uint32_t granule_bytes = 8;
        // Kept in registers, from where each address takes one instruction.
        const char *from = a.weights.values + int64_t{unit.start} * granule_bytes;
        asm volatile("" : "+l"(from));
        const uint32_t before = (1U << lane) - 1;
        values.most = __reduce_max_sync(whole_warp, count);
        uint32_t first = 0;
#pragma unroll
        for (int32_t i = 0; i < most_granules; i++) {
            if (i >= values.most) {
                break;
            }
            const uint32_t having = __ballot_sync(whole_warp, i < count);
            // A lane without one loads another's, or what follows the last: that takes no branch, and nobody reads it.
            const uint32_t place = first + __popc(having & before);
            values.granules[i] = load_once(reinterpret_cast<const uint2 *>(from + uint64_t{place} * granule_bytes));
            first += __popc(having);
        }
    }
    /** Puts values p and p + 1 into row p. Behind a lane's last value, anything may stand. */
    __device__ void put(const Values &values) const {
#pragma unroll
        for (int32_t i = 0; i < most_granules; i++) {
            if (i >= values.most) {
                break;
            }
            const uint2 own = values.granules[i];
            const uint32_t next = i + 1 < most_granules ? values.granules[i + 1 < most_granules ? i + 1 : i].x : 0;
            const uint32_t to = own_values + i * granule * value_row_bytes;
            store_shared(to, own.x);
            store_shared(to + value_row_bytes, middle_of(own.x, own.y));
            store_shared(to + 2 * value_row_bytes, own.y);
            store_shared(to + 3 * value_row_bytes, middle_of(own.y, next));
        }
    }

    /** Multiplies a unit by what is staged at `piece`, where it is the unit with this index. */
    __device__ void multiply(uint2 bits, uint32_t piece, int32_t index) {
        // A selector of bytes for a pair whose weights are both 0, and what is added for the first and the second one:
        // a value, or zeros from behind it. A second weight takes the second value if the first one took one.
        constexpr uint32_t no_weights = 0x5454, first_weight = 0x21bc;
        static_assert(((no_weights + first_weight) & 0xffff) == 0x7610 &&
                      ((no_weights + (first_weight << 8)) & 0xffff) == 0x1054 &&
                      ((no_weights + first_weight + (first_weight << 8)) & 0xffff) == 0x3210);
        // Its bits are in the low and in the high byte, so that a product adds for both.
        constexpr uint32_t pair_bits = 0x101, count_bytes = 0x101 * value_row_bytes;
        constexpr int32_t bits_at_once = 3, halves = 4, half_pairs = 8, step_pairs = 4;
        const int32_t column = lane / 4, place = lane % 4;
        const uint32_t input = piece + column * row_bytes + index * unit_chunks * 16;
        uint32_t value = own_values;
#pragma unroll
        for (int32_t half = 0; half < halves; half++) {
            uint32_t word = (half < 2 ? bits.x : bits.y) >> half % 2 * 16;
            uint32_t factors[2][step_pairs];
#pragma unroll
            for (int32_t pair = 0; pair < half_pairs; pair++) {
                const int32_t bit = pair % bits_at_once;
                if (pair > 0 && bit == 0) {
                    word >>= bits_at_once;
                }
                const uint32_t weights = word & pair_bits << bit;
                factors[pair / step_pairs][pair % step_pairs] =
                    select_bytes(load_shared(value), 0, weights * (first_weight >> bit) + no_weights);
                value = __dp4a(weights, count_bytes >> bit, value);
            }
            const uint32_t chunk = (half * 4 + place) ^ (column % 2 * 4);
#pragma unroll
            for (int32_t tile = 0; tile < column_tiles; tile++) {
                const uint4 staged = load_shared_four(input + tile * 8 * row_bytes + chunk * 16);
                const uint32_t first[2] = {staged.x, staged.y}, second[2] = {staged.z, staged.w};
                tensor_core::multiply_add(Element{}, sums[tile], factors[0], first);
                tensor_core::multiply_add(Element{}, sums[tile], factors[1], second);
            }
        }
    }

    /** Stages the input of some units in one of both places. */
    __device__ void stage(int32_t first_unit, int32_t place) const {
        const int32_t first = first_unit * unit_columns;
        constexpr int32_t chunks = Pixels * row_chunks;
        static_assert(chunks % threads == 0 && chunks * 16 == piece_bytes);
        const uint32_t to = tensor_core::shared_address(shared.input[place]);
#pragma unroll 1
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < chunks; i += threads) {
            const int32_t pixel = i / row_chunks, chunk = i % row_chunks, channel = first + chunk * chunk_channels;
            const uint32_t at = to + (i / row_chunks * row_chunks + (chunk ^ pixel % 2 * 4)) * 16;
            const char *const row = shared.rows[pixel];
            const int32_t left = row ? a.in_channels - channel : 0;
            if (a.reads_whole != 0) {
                tensor_core::copy_or_zero(at, left > 0 ? row + channel * element_bytes : a.input.data, left > 0);
                continue;
            }
            const auto *const from = reinterpret_cast<const uint16_t *>(row) + channel;
            uint32_t words[4];
#pragma unroll
            for (int32_t word = 0; word < 4; word++) {
                const uint32_t low = 2 * word < left ? from[2 * word] : 0,
                               high = 2 * word + 1 < left ? from[2 * word + 1] : 0;
                words[word] = low | high << 16;
            }
            store_shared_four(at, {words[0], words[1], words[2], words[3]});
        }
        end_group_of_copies();
    }

    /** Puts the sums of each part into shared memory, [part][pixel][output channel]. */
    __device__ int32_t channel_stride() const {
        constexpr int32_t padding = 4;
        return a.channels + padding;
    }
    __device__ float *all_sums() const {
        static_assert(sizeof(shared.values) >= sizeof(float) * Pixels * (most_channels + 4 * warps));
        return reinterpret_cast<float *>(shared.values);
    }
    __device__ void turn_sums() const {
        const int32_t stride = channel_stride(), channel = warp % (a.channels / unit_rows) * unit_rows + lane / 4;
        float *const to = all_sums() + part * Pixels * stride + channel;
#pragma unroll
        for (int32_t tile = 0; tile < column_tiles; tile++) {
            float *const at = to + (tile * 8 + lane % 4 * 2) * stride;
            at[0] = sums[tile][0];
            at[stride] = sums[tile][1];
            at[8] = sums[tile][2];
            at[stride + 8] = sums[tile][3];
        }
    }
    __device__ float4 sum_of_parts(int32_t pixel, int32_t channel) const {
        const int32_t stride = channel_stride();
        const float *const from = all_sums() + pixel * stride + channel;
        float4 sum = *reinterpret_cast<const float4 *>(from);
        for (int32_t other = 1; other < parts; other++) {
            add(sum, *reinterpret_cast<const float4 *>(from + other * Pixels * stride));
        }
        return sum;
    }
    __device__ static void add(float4 &sum, const float4 &more) {
        sum.x += more.x;
        sum.y += more.y;
        sum.z += more.z;
        sum.w += more.w;
    }

    /** Whether this block is the last of those that share an output. All write their sums before. */
    __device__ bool is_last_to_join(int32_t output, int32_t split) const {
        auto *const to =
            reinterpret_cast<float4 *>(a.parts) + (int64_t{output} * a.splits + split) * (Pixels * a.channels / 4);
        const int32_t fours = a.channels / 4;
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < Pixels * fours; i += threads) {
            __stcg(to + i, sum_of_parts(i / fours, i % fours * 4));
        }
        return is_last_of(a, output, shared.is_last);
    }
    /** The sums of all splits, in the order of the splits, whoever is the last. */
    __device__ float4 sum_of_splits(int32_t output, int32_t i) const {
        const int32_t count = Pixels * a.channels / 4;
        const auto *const from = reinterpret_cast<const float4 *>(a.parts) + int64_t{output} * a.splits * count + i;
        float4 sum = __ldcg(from);
#pragma unroll 4
        for (int32_t split = 1; split < a.splits; split++) {
            add(sum, __ldcg(from + split * count));
        }
        return sum;
    }

    __device__ float result_of(float sum, int32_t channel, float residual) const {
        const float value = sum + __ldg(a.bias + channel) + residual;
        return a.epilogue == DISTILE_ACTIVATION_NONE
                   ? value
                   : activate_one(value, {static_cast<distile_activation>(a.epilogue), a.slope});
    }
    __device__ void store(int32_t output) const {
        using Stored = tensor_core::Storage<Element>;
        const int32_t fours = a.channels / 4;
#pragma unroll 1
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < Pixels * fours; i += threads) {
            const Pixel pixel = shared.pixels[i / fours];
            const int32_t channel = static_cast<int32_t>(blockIdx.y) * a.channels + i % fours * 4;
            if (!pixel.is_there() || channel >= a.out_channels) {
                continue;
            }
            const float4 sum = a.splits > 1 ? sum_of_splits(output, i) : sum_of_parts(i / fours, i % fours * 4);
            char *const to = pixel.in(a.output) + channel * element_bytes;
            const char *const residual = a.residual.data ? pixel.in(a.residual) + channel * element_bytes : nullptr;
            if (a.writes_whole != 0) {
                float2 low = {0, 0}, high = {0, 0};
                if (residual) {
                    const uint2 more = *reinterpret_cast<const uint2 *>(residual);
                    low = Stored::unpack(more.x);
                    high = Stored::unpack(more.y);
                }
                *reinterpret_cast<uint2 *>(to) = {
                    Stored::pack(result_of(sum.x, channel, low.x), result_of(sum.y, channel + 1, low.y)),
                    Stored::pack(result_of(sum.z, channel + 2, high.x), result_of(sum.w, channel + 3, high.y))};
                continue;
            }
            const float each[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
            for (int32_t j = 0; j < 4; j++) {
                if (channel + j < a.out_channels) {
                    const float more = residual ? Stored::unpack(reinterpret_cast<const uint16_t *>(residual)[j]).x : 0;
                    reinterpret_cast<uint16_t *>(to)[j] =
                        static_cast<uint16_t>(Stored::pack(result_of(each[j], channel + j, more), 0));
                }
            }
        }
    }

    __device__ void compute() {
        // What is read takes long to come, so all is asked for that can be, before the first of it is used.
        const auto split = static_cast<int32_t>(blockIdx.z);
        const int32_t first = split * a.units / a.splits, last = (split + 1) * a.units / a.splits;
        int32_t unit = first + part;
        Unit now = unit_at(unit, last), next = unit_at(unit + parts, last);
        uint2 range = range_at(unit + a.ahead * parts, last);
        const uint32_t first_pixel = blockIdx.x * Pixels;
        const Listed listed = threadIdx.x < Pixels ? cuda_nonzeros::listed_of(a, first_pixel + threadIdx.x)
                                                   : Listed{0xffffffff, 0, 0, 0, -1};
        const uint32_t count = *a.count;
        for (int32_t i = 1; i < a.ahead; i++) {
            fetch(unit + i * parts, last, range_at(unit + i * parts, last));
        }
        Values values;
#pragma unroll
        for (uint2 &each : values.granules) {
            // Values that the compiler knew would make code of their own for each number of granules.
            each = {tensor_core::keep_value(0), tensor_core::keep_value(0)};
        }
        load(now, values);
        if (first_pixel >= int64_t{count} * (a.rows.tile * a.columns.tile)) {
            return;
        }
        const Pixel pixel = cuda_nonzeros::pixel_of(a, listed, count);
        if (threadIdx.x < Pixels) {
            shared.pixels[threadIdx.x] = pixel;
            shared.rows[threadIdx.x] = pixel.is_there() ? pixel.in(a.input) : nullptr;
        }
        // Inactive pixels of a tile are computed as well. Whether to store them is known later.
        const uint32_t word = cuda_nonzeros::word_of(a, pixel);
        __syncthreads();
        stage(first, 0);
        stage(first + piece_units, 1);
        // More warps than a piece has units multiply both pieces at once.
        const int32_t pieces_at_once = parts > piece_units ? pieces : 1;
        for (int32_t piece = 0; first + piece * piece_units < last; piece += pieces_at_once) {
            if (pieces_at_once == 1) {
                wait_for_groups<1>();
            } else {
                wait_for_groups<0>();
            }
            __syncthreads();
#pragma unroll 1
            for (int32_t index = part; index < pieces_at_once * piece_units; index += parts, unit += parts) {
                if (!is_in(unit, last)) {
                    continue;
                }
                put(values);
                const uint2 bits = now.bits;
                now = next;
                next = unit_at(unit + 2 * parts, last);
                load(now, values);
                fetch(unit + a.ahead * parts, last, range);
                range = range_at(unit + (a.ahead + 1) * parts, last);
                multiply(bits, tensor_core::shared_address(shared.input[(piece + index / piece_units) % pieces]),
                         index % piece_units);
            }
            __syncthreads();
            for (int32_t i = 0; i < pieces_at_once; i++) {
                stage(first + (piece + pieces + i) * piece_units, (piece + i) % pieces);
            }
        }
        if (threadIdx.x < Pixels && (word >> (pixel.x() % 32) & 1) == 0) {
            shared.pixels[threadIdx.x].image = -1;
        }
        turn_sums();
        __syncthreads();
        const auto output = static_cast<int32_t>(blockIdx.x * gridDim.y + blockIdx.y);
        if (a.splits == 1 || is_last_to_join(output, split)) {
            store(output);
        }
    }
};

template<class Element, int32_t Pixels> __device__ void run(const Arguments &a) {
    extern __shared__ __align__(128) char memory[];
    Product<Element, Pixels>(a, *reinterpret_cast<SharedMemory *>(memory)).compute();
}

#define DISTILE_CUDA_BITMAP_KERNEL(type, Element, pixels)                                                              \
    extern "C" __global__ void __launch_bounds__(threads, 2)                                                           \
        distile_bitmap_##type##_##pixels(const __grid_constant__ Arguments arguments) {                                \
        run<tensor_core::Element, pixels>(arguments);                                                                  \
    }

}  // namespace distile::cuda_bitmap

#endif
