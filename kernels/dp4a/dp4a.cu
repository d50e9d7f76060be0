// Quantized operators without tensor cores, by dot products of four numbers. The kernels read the operator at run time,
// so one unit serves all. A launch computes one phase. Results are to the bit what code for CPUs makes
// (distile_requantization in kernels/dot_products.h), so nothing may be fused.
#include "kernels/dp4a/dp4a_arguments.h"
#include "kernels/tensor_core/arguments.h"
#include "runtime/cuda/kernels/activations.cuh"

namespace distile::dp4a {

using tensor_core::Requantization;

/** An output pixel. */
struct Row {
    bool is_stored;
    int32_t y, x, image;
};

/** The output pixel of a row of the matrix product: a pixel of a tile that this phase has. */
__device__ inline Row row_of(const Arguments &a, uint32_t row) {
    const uint32_t tile_rows = a.rows.pixels * a.columns.pixels, tile = row / tile_rows, within = row % tile_rows;
    if (tile >= *a.count) {
        return {};
    }
    const uint32_t xy = a.xy[tile];
    const auto place = [](const Axis &axis, int32_t first, int32_t index, bool &is_in) {
        // The first pixel of the phase within a tile that begins anywhere.
        const int32_t shift = (axis.phase - first % axis.scale + axis.scale) % axis.scale + index * axis.scale;
        is_in = is_in && shift < axis.tile && first + shift < axis.extent;
        return first + shift;
    };
    Row found{true, 0, 0, static_cast<int32_t>(a.xy[a.capacity + tile])};
    found.y =
        place(a.rows, static_cast<int32_t>(xy >> 16), static_cast<int32_t>(within) / a.columns.pixels, found.is_stored);
    found.x = place(a.columns, static_cast<int32_t>(xy & 0xffff), static_cast<int32_t>(within) % a.columns.pixels,
                    found.is_stored);
    if (found.is_stored && a.store_tiles == 0) {
        const int64_t line = int64_t{found.image} * a.rows.extent + found.y;
        found.is_stored = (a.bits[line * a.words_per_row + found.x / 32] >> (found.x % 32) & 1) != 0;
    }
    return found;
}

/** What a row reads. */
struct Source {
    const char *image;  ///< Null: nothing, because the row is not stored.
    int32_t y, x;       ///< The input pixel of its first tap.

    __device__ static Source of(const Arguments &a, const Row &row) {
        return {row.is_stored ? a.input.data + row.image * a.input.stride_n : nullptr,
                row.y / a.rows.scale * a.rows.stride + a.rows.first,
                row.x / a.columns.scale * a.columns.stride + a.columns.first};
    }
    /** The input pixel of a tap; null beyond the input. */
    __device__ const char *pixel(const Arguments &a, int32_t tap_y, int32_t tap_x) const {
        const int32_t row = y + tap_y * a.rows.step, column = x + tap_x * a.columns.step;
        const bool is_in = image && tap_y < a.rows.taps && tap_x < a.columns.taps && row >= a.rows.begin &&
                           row < a.rows.end && column >= a.columns.begin && column < a.columns.end;
        return is_in ? image + int64_t{row} * a.input.stride_h + int64_t{column} * a.input.stride_w : nullptr;
    }
};

__device__ inline uint32_t padding_of(const Arguments &a) {
    const auto &header = *reinterpret_cast<const Requantization *>(a.requantization);
    return (static_cast<uint32_t>(header.input_zero_point) & 0xff) * 0x01010101u;
}

/** Adds the products of four numbers, unsigned ones and weights. Wraps around. */
__device__ inline void multiply_add(int32_t &sum, uint32_t inputs, uint32_t weights) {
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(inputs), "r"(weights));
}

/** Makes results of sums. */
class Finish {
public:
    __device__ explicit Finish(const Arguments &arguments)
        : a_(arguments), header_(*reinterpret_cast<const Requantization *>(arguments.requantization)) {
    }
    /** The bits of a number, or a byte in the lowest ones. `residual` is null if there is none. */
    __device__ uint32_t result(int32_t sum, int32_t channel, const char *residual) const {
        const uint32_t total = static_cast<uint32_t>(sum) + static_cast<uint32_t>(a_.offsets[channel]);
        const float product = __fmul_rn(__int2float_rn(static_cast<int32_t>(total)), a_.multipliers[channel]);
        float value = __fadd_rn(product, a_.bias[channel]);
        if (residual) {
            value = __fadd_rn(value, added(residual));
        }
        value = activate_one(value, {static_cast<distile_activation>(a_.epilogue), a_.slope});
        if (a_.output_bytes == 4) {
            return __float_as_uint(value);
        }
        // Near this number, float32 has integers only, which its lowest bits hold. NaN becomes the least one.
        constexpr float to_integer = 0x1.8p23f;
        const float least = __int2float_rn(a_.output_least - header_.output_zero_point);
        const float clamped = fminf(fmaxf(__fmul_rn(value, header_.output_factor), least), least + 255);
        return __float_as_uint(__fadd_rn(clamped, to_integer)) + static_cast<uint32_t>(header_.output_zero_point);
    }

private:
    __device__ float added(const char *residual) const {
        if (a_.output_bytes == 4) {
            return *reinterpret_cast<const float *>(residual);
        }
        const auto stored = static_cast<uint8_t>(*residual);
        const int32_t number = a_.output_least < 0 ? static_cast<int8_t>(stored) : stored;
        return __fmul_rn(__int2float_rn(number - header_.residual_zero_point), header_.residual_factor);
    }

    const Arguments &a_;
    const Requantization &header_;
};

/** Output channels from one on. */
struct OutputChannels {
    int32_t first, end;  ///< `end` is that of their section.
    int32_t place;       ///< In the weights, and in what there is for each channel of these.

    __device__ OutputChannels from(int32_t distance) const {
        return {first + distance, end, place + distance};
    }
};

/** Block `index` of the weights, of `channels` output channels. */
__device__ inline OutputChannels channels_of(const Arguments &a, int32_t index, int32_t channels) {
    const int32_t section_blocks = (a.padded_section + channels - 1) / channels, section = index / section_blocks,
                  before = index % section_blocks * channels, first = section * a.section_channels;
    return {first + before, min(first + a.section_channels, a.out_channels), section * a.padded_section + before};
}

/** Stores the results of a pixel and of the first four channels, as many as there are. Not inlined, because a thread
 * calls it for each of its pixels. */
static __noinline__ __device__ void store_results(const Arguments &a, Row row, OutputChannels channels, int4 sums) {
    if (!row.is_stored || channels.first >= channels.end) {
        return;
    }
    const auto place = [&](const CudaTensor &tensor) {
        return tensor.data + row.image * tensor.stride_n + int64_t{row.y} * tensor.stride_h +
               int64_t{row.x} * tensor.stride_w + int64_t{channels.first} * a.output_bytes;
    };
    const Finish finish(a);
    char *const to = place(a.output);
    const char *const residual = a.residual.data ? place(a.residual) : nullptr;
    const int32_t of[thread_channels] = {sums.x, sums.y, sums.z, sums.w};
    uint32_t words[thread_channels] = {};
    const bool is_whole = channels.first + thread_channels <= channels.end;
#pragma unroll
    for (int32_t i = 0; i < thread_channels; i++) {
        if (channels.first + i < channels.end) {
            words[i] = finish.result(of[i], channels.place + i, residual ? residual + i * a.output_bytes : nullptr);
            if (!is_whole || a.stores_vectors == 0) {
                if (a.output_bytes == 4) {
                    reinterpret_cast<uint32_t *>(to)[i] = words[i];
                } else {
                    to[i] = static_cast<char>(words[i]);
                }
            }
        }
    }
    if (is_whole && a.stores_vectors != 0 && a.output_bytes == 4) {
        *reinterpret_cast<uint4 *>(to) = {words[0], words[1], words[2], words[3]};
    } else if (is_whole && a.stores_vectors != 0) {
        *reinterpret_cast<uint32_t *>(to) =
            __byte_perm(__byte_perm(words[0], words[1], 0x0040), __byte_perm(words[2], words[3], 0x0040), 0x5410);
    }
}

/** A place in the reduction: over the kernel's rows, its columns, and the input channels that are read. */
struct ReductionPlace {
    int32_t tap_y, tap_x, channel;

    __device__ static ReductionPlace of(const Arguments &a, int32_t element) {
        // A phase may have no taps.
        const int32_t tap = element / a.read_channels, columns = max(a.columns.taps, 1);
        return {tap / columns, tap % columns, element % a.read_channels};
    }
    __device__ void move(const Arguments &a, int32_t elements) {
        channel += elements;
        while (channel >= a.read_channels) {
            channel -= a.read_channels;
            if (++tap_x == a.columns.taps) {
                tap_x = 0;
                tap_y++;
            }
        }
    }
};

/** Loads 16 elements of a row's reduction, which may be of many pixels. Not inlined, because it is long. */
static __noinline__ __device__ uint4 load_narrow(const Arguments &a, Source source, ReductionPlace place,
                                                 int32_t first_channel, uint32_t padding) {
    uint32_t words[4];
#pragma unroll
    for (uint32_t &word : words) {
        word = 0;
        for (int32_t i = 0; i < 4; i += a.unit) {
            const char *const pixel = source.pixel(a, place.tap_y, place.tap_x);
            const char *const from = pixel + first_channel + place.channel;
            if (a.unit == 4) {
                word = pixel ? *reinterpret_cast<const uint32_t *>(from) : padding;
            } else {
                word |= (pixel ? static_cast<uint8_t>(*from) : padding & 0xff) << (8 * i);
            }
            place.move(a, a.unit);
        }
    }
    return {words[0], words[1], words[2], words[3]};
}
__device__ inline uint4 load_piece(const Arguments &a, const Source &source, const ReductionPlace &place,
                                   int32_t first_channel, uint32_t padding) {
    uint4 piece = {padding, padding, padding, padding};
    if (a.unit == 16) {
        if (const char *const pixel = source.pixel(a, place.tap_y, place.tap_x)) {
            piece = *reinterpret_cast<const uint4 *>(pixel + first_channel + place.channel);
        }
    } else {
        piece = load_narrow(a, source, place, first_channel, padding);
    }
    return {piece.x ^ a.flip, piece.y ^ a.flip, piece.z ^ a.flip, piece.w ^ a.flip};
}

/** Computes Pixels x Channels, of which a thread has ThreadPixels x 4. Steps of the reduction are staged in shared
 * memory, the next one while one is multiplied. All channels are of one section, and read the same input channels. */
template<int32_t Pixels, int32_t Channels, int32_t ThreadPixels> struct Product {
    static constexpr int32_t threads = Pixels / ThreadPixels * (Channels / thread_channels);
    static constexpr int32_t piece_elements = 16, step_elements = 4 * step_groups;
    static constexpr int32_t pieces = Pixels * (step_elements / piece_elements) / threads;
    static constexpr int32_t weight_pieces = Channels / block_channels * (weight_step / 16) / threads;
    static_assert(pieces * threads * piece_elements == Pixels * step_elements && Pixels % 32 == 0);
    static_assert(weight_pieces * threads * 16 == Channels / block_channels * weight_step);

    struct Shared {
        uint32_t inputs[2][step_groups][Pixels];
        uint32_t weights[2][step_groups][Channels];
    };

    const Arguments &a;
    Shared &shared;
    Source sources[pieces];
    ReductionPlace places[pieces];
    uint4 inputs[pieces], weights[weight_pieces];
    OutputChannels channels;
    int32_t first_channel;
    uint32_t padding;

    __device__ Product(const Arguments &arguments, Shared &memory, uint32_t first_row, OutputChannels output_channels)
        : a(arguments), shared(memory), channels(output_channels), padding(padding_of(arguments)) {
        // The last section reads the last input channels.
        first_channel = min(channels.place / a.padded_section * a.read_channels, a.in_channels - a.read_channels);
#pragma unroll
        for (int32_t i = 0; i < pieces; i++) {
            sources[i] = Source::of(a, row_of(a, first_row + pixel_of(i)));
            places[i] = ReductionPlace::of(a, piece_of(i) * piece_elements);
        }
    }
    __device__ static int32_t pixel_of(int32_t i) {
        return static_cast<int32_t>(threadIdx.x + i * threads) % Pixels;
    }
    __device__ static int32_t piece_of(int32_t i) {
        return static_cast<int32_t>(threadIdx.x + i * threads) / Pixels;
    }
    __device__ void load(int32_t step) {
#pragma unroll
        for (int32_t i = 0; i < pieces; i++) {
            inputs[i] = load_piece(a, sources[i], places[i], first_channel, padding);
            places[i].move(a, step_elements);
        }
#pragma unroll
        for (int32_t i = 0; i < weight_pieces; i++) {
            const int32_t piece = static_cast<int32_t>(threadIdx.x) + i * threads, block = piece / (weight_step / 16);
            // The last block of a section may have fewer blocks of the weights.
            const bool is_there = channels.from(block * block_channels).first < channels.end;
            weights[i] = is_there ? __ldg(reinterpret_cast<const uint4 *>(
                                              a.weights + (channels.place / block_channels + block) * a.weight_block +
                                              int64_t{step} * weight_step) +
                                          piece % (weight_step / 16))
                                  : uint4{};
        }
    }
    __device__ void stage(int32_t buffer) {
#pragma unroll
        for (int32_t i = 0; i < pieces; i++) {
            const int32_t pixel = pixel_of(i), group = 4 * piece_of(i);
            shared.inputs[buffer][group][pixel] = inputs[i].x;
            shared.inputs[buffer][group + 1][pixel] = inputs[i].y;
            shared.inputs[buffer][group + 2][pixel] = inputs[i].z;
            shared.inputs[buffer][group + 3][pixel] = inputs[i].w;
        }
#pragma unroll
        for (int32_t i = 0; i < weight_pieces; i++) {
            const int32_t piece = static_cast<int32_t>(threadIdx.x) + i * threads, block = piece / (weight_step / 16);
            const int32_t within = piece % (weight_step / 16) * 4;
            *reinterpret_cast<uint4 *>(
                &shared.weights[buffer][within / block_channels][block * block_channels + within % block_channels]) =
                weights[i];
        }
    }
    __device__ void multiply(int32_t buffer, int32_t first_pixel, int32_t first_channel_of_thread,
                             int32_t (&sums)[ThreadPixels][thread_channels]) const {
#pragma unroll 4
        for (int32_t group = 0; group < step_groups; group++) {
            const uint4 four =
                *reinterpret_cast<const uint4 *>(&shared.weights[buffer][group][first_channel_of_thread]);
#pragma unroll
            for (int32_t p = 0; p < ThreadPixels; p += 4) {
                const uint4 read = *reinterpret_cast<const uint4 *>(&shared.inputs[buffer][group][first_pixel + p]);
                const uint32_t pixels[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
                for (int32_t i = 0; i < 4; i++) {
                    multiply_add(sums[p + i][0], pixels[i], four.x);
                    multiply_add(sums[p + i][1], pixels[i], four.y);
                    multiply_add(sums[p + i][2], pixels[i], four.z);
                    multiply_add(sums[p + i][3], pixels[i], four.w);
                }
            }
        }
    }
    __device__ static void run(const Arguments &arguments) {
        __shared__ __align__(16) Shared memory;
        const uint32_t sections =
                           (arguments.out_channels + arguments.section_channels - 1) / arguments.section_channels,
                       column_blocks = sections * ((arguments.padded_section + Channels - 1) / Channels);
        const uint32_t first_row = blockIdx.x / column_blocks * Pixels;
        if (first_row / (arguments.rows.pixels * arguments.columns.pixels) >= *arguments.count) {
            return;
        }
        Product product(arguments, memory, first_row,
                        channels_of(arguments, static_cast<int32_t>(blockIdx.x % column_blocks), Channels));
        const int32_t thread_channel =
            static_cast<int32_t>(threadIdx.x) % (Channels / thread_channels) * thread_channels;
        const int32_t thread_pixel = static_cast<int32_t>(threadIdx.x) / (Channels / thread_channels) * ThreadPixels;
        int32_t sums[ThreadPixels][thread_channels] = {};
        if (arguments.steps > 0) {
            product.load(0);
            product.stage(0);
        }
        __syncthreads();
        for (int32_t step = 0; step < arguments.steps; step++) {
            if (step + 1 < arguments.steps) {
                product.load(step + 1);
            }
            product.multiply(step % 2, thread_pixel, thread_channel, sums);
            if (step + 1 < arguments.steps) {
                product.stage((step + 1) % 2);
            }
            __syncthreads();
        }
#pragma unroll
        for (int32_t p = 0; p < ThreadPixels; p++) {
            store_results(arguments, row_of(arguments, first_row + thread_pixel + p),
                          product.channels.from(thread_channel), {sums[p][0], sums[p][1], sums[p][2], sums[p][3]});
        }
    }
};

/** Four channels of four taps, which are below each other, become four taps of each channel. */
__device__ inline void transpose(uint32_t (&words)[4]) {
    const uint32_t low[2] = {__byte_perm(words[0], words[1], 0x5140), __byte_perm(words[2], words[3], 0x5140)};
    const uint32_t high[2] = {__byte_perm(words[0], words[1], 0x7362), __byte_perm(words[2], words[3], 0x7362)};
    words[0] = __byte_perm(low[0], low[1], 0x5410);
    words[1] = __byte_perm(low[0], low[1], 0x7632);
    words[2] = __byte_perm(high[0], high[1], 0x5410);
    words[3] = __byte_perm(high[0], high[1], 0x7632);
}

/** Each output channel reads its own input. The reduction goes over the kernel's columns, and in each over groups of
 * four of its rows. */
__device__ inline void run_depthwise(const Arguments &a) {
    const uint32_t quads = (a.out_channels + thread_channels - 1) / thread_channels;
    const uint64_t item = uint64_t{blockIdx.x} * depthwise_threads + threadIdx.x;
    const Row row = row_of(a, static_cast<uint32_t>(item / quads));
    if (!row.is_stored) {
        return;
    }
    const auto channel = static_cast<int32_t>(item % quads) * thread_channels;
    const Source source = Source::of(a, row);
    const uint32_t padding = padding_of(a);
    const char *weights = a.weights + channel / block_channels * a.weight_block + channel % block_channels * 4;
    int32_t sums[thread_channels] = {};
    for (int32_t tap_x = 0; tap_x < a.columns.taps; tap_x++) {
        for (int32_t first = 0; first < a.rows.taps; first += 4, weights += block_channels * 4) {
            uint32_t words[4];
#pragma unroll
            for (int32_t i = 0; i < 4; i++) {
                const char *const pixel = source.pixel(a, first + i, tap_x);
                words[i] = padding;
                if (pixel && a.unit >= 4) {
                    words[i] = *reinterpret_cast<const uint32_t *>(pixel + channel);
                } else if (pixel) {
                    words[i] = 0;
                    for (int32_t c = 0; c < thread_channels && channel + c < a.in_channels; c++) {
                        words[i] |= uint32_t{static_cast<uint8_t>(pixel[channel + c])} << (8 * c);
                    }
                }
                words[i] ^= a.flip;
            }
            transpose(words);
            const uint4 four = __ldg(reinterpret_cast<const uint4 *>(weights));
            multiply_add(sums[0], words[0], four.x);
            multiply_add(sums[1], words[1], four.y);
            multiply_add(sums[2], words[2], four.z);
            multiply_add(sums[3], words[3], four.w);
        }
    }
    store_results(a, row, {channel, a.out_channels, channel}, {sums[0], sums[1], sums[2], sums[3]});
}

#define DISTILE_KERNEL(pixels, channels, thread_pixels)                                                                \
    extern "C" __global__ void __launch_bounds__(Product<pixels, channels, thread_pixels>::threads)                    \
        distile_dp4a_##pixels##_##channels(const __grid_constant__ Arguments arguments) {                              \
        Product<pixels, channels, thread_pixels>::run(arguments);                                                      \
    }
DISTILE_KERNEL(32, 16, 4)
DISTILE_KERNEL(32, 64, 4)
DISTILE_KERNEL(128, 16, 8)
DISTILE_KERNEL(128, 64, 8)
#undef DISTILE_KERNEL

extern "C" __global__ void __launch_bounds__(depthwise_threads)
    distile_dp4a_depthwise(const __grid_constant__ Arguments arguments) {
    run_depthwise(arguments);
}

}  // namespace distile::dp4a
