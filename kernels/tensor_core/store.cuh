/** \file
 * Stores results where their rows belong.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_STORE_CUH
#define DISTILE_CUDA_TENSOR_CORE_STORE_CUH

#include "kernels/tensor_core/epilogue.cuh"
#include "kernels/tensor_core/rows.cuh"

namespace distile::tensor_core {

/** Where a row's result goes. */
struct Place {
    uint32_t xy;     ///< x | y << 16.
    uint32_t image;  ///< `nowhere` if no result is stored.
    static constexpr uint32_t nowhere = ~0u;

    template<class Op>
    __device__ static Place of(const Rows<Op> &rows, uint32_t row, const typename Rows<Op>::Entry &entry) {
        if (row < rows.count()) {
            const Pixel pixel = rows.pixel(row, entry);
            if (rows.is_stored(pixel)) {
                return {static_cast<uint32_t>(pixel.x) | static_cast<uint32_t>(pixel.y) << 16,
                        static_cast<uint32_t>(pixel.image)};
            }
        }
        return {0, nowhere};
    }
    /** Whether the result is stored. To be asked instead of a pointer that may be null: ptxas 13.0 let code test such a
     * pointer before its zeros were there, and then store to address 0. */
    __device__ bool exists() const {
        return image != nowhere;
    }
    /** The pixel's first channel in a tensor, if it exists. */
    __device__ char *in(const Tensor &tensor) const {
        const int32_t x = static_cast<int32_t>(xy & 0xffff), y = static_cast<int32_t>(xy >> 16);
        const int32_t at = static_cast<int32_t>(image) * tensor.stride_n + y * tensor.stride_h + x * tensor.stride_w;
        return tensor.data + int64_t{at} * 16;
    }
};

/** Transposes 4 x 4 values of four neighbouring lanes. */
__device__ inline void transpose_in_quad(uint32_t (&values)[4]) {
    const bool odd = (threadIdx.x & 1) != 0, high = (threadIdx.x & 2) != 0;
    const uint32_t first = __shfl_xor_sync(~0u, odd ? values[0] : values[1], 1);
    const uint32_t second = __shfl_xor_sync(~0u, odd ? values[2] : values[3], 1);
    (odd ? values[0] : values[1]) = first;
    (odd ? values[2] : values[3]) = second;
    const uint32_t third = __shfl_xor_sync(~0u, high ? values[0] : values[2], 2);
    const uint32_t fourth = __shfl_xor_sync(~0u, high ? values[1] : values[3], 2);
    (high ? values[0] : values[2]) = third;
    (high ? values[1] : values[3]) = fourth;
}

/** The lower halves of two words. */
__device__ inline uint32_t both_halves(uint32_t low, uint32_t high) {
    return __byte_perm(low, high, 0x5410);
}

/** Two neighbouring values of a residual's row; 0 without a residual. */
template<class Op>
__device__ inline float2 residual_of(const Epilogue<Op> &epilogue, const char *row, int32_t channel) {
    using Stored = Storage<typename Op::Result>;
    if constexpr (!Op::residual) {
        return {0, 0};
    } else if constexpr (Stored::bytes == 4) {
        return *reinterpret_cast<const float2 *>(row + channel * 4);
    } else if constexpr (Stored::bytes == 2) {
        return epilogue.unpack(*reinterpret_cast<const uint32_t *>(row + channel * 2));
    } else {
        return epilogue.unpack(*reinterpret_cast<const uint16_t *>(row + channel));
    }
}

/** Stores eight neighbouring results of a row, whose sums are complete, unless they begin at `end`. `params` are those
 * of the first. */
template<class Op> __device__ inline void store_row(const Arguments &a, const Epilogue<Op> &epilogue,
                                                    const Place &place, const SumOf<Op> (&sums)[8],
                                                    const ChannelParams<Op> &params, int32_t channel, int32_t end) {
    using Stored = Storage<typename Op::Result>;
    if (!place.exists() || channel >= end) {
        return;
    }
    char *const to = place.in(a.output);
    const char *const residual = place.in(a.residual);
    float2 results[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        results[i] = epilogue(sums[2 * i], sums[2 * i + 1], params.from(2 * i),
                              residual_of<Op>(epilogue, residual, channel + 2 * i));
    }
    if constexpr (Stored::bytes == 4) {
        auto *const out = reinterpret_cast<float4 *>(to + channel * 4);
        out[0] = {results[0].x, results[0].y, results[1].x, results[1].y};
        out[1] = {results[2].x, results[2].y, results[3].x, results[3].y};
    } else {
        const uint32_t packed[4] = {epilogue.pack(results[0]), epilogue.pack(results[1]), epilogue.pack(results[2]),
                                    epilogue.pack(results[3])};
        if constexpr (Stored::bytes == 2) {
            *reinterpret_cast<uint4 *>(to + channel * 2) = {packed[0], packed[1], packed[2], packed[3]};
        } else {
            *reinterpret_cast<uint2 *>(to + channel) = {both_halves(packed[0], packed[1]),
                                                        both_halves(packed[2], packed[3])};
        }
    }
}

/** How four neighbouring lanes exchange results, of which each stores 16 bytes, and residuals. */
template<int Bytes> struct QuadExchange {
    static constexpr int vector = 16 / Bytes;         ///< Channels of a lane.
    static constexpr int groups = 4 * vector / 8;     ///< Groups of eight channels of the four lanes.
    static constexpr int groups_of_word = 2 / Bytes;  ///< A lane has two channels of each group.

    /** Words of the own channels of all groups become 16 neighbouring bytes. */
    __device__ static void gather(uint32_t (&words)[4]) {
        transpose_in_quad(words);
        if constexpr (Bytes == 1) {
            const uint32_t low[2] = {__byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410)};
            const uint32_t high[2] = {__byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632)};
            words[0] = low[0];
            words[1] = low[1];
            words[2] = high[0];
            words[3] = high[1];
        }
    }
    /** The reverse. */
    __device__ static void scatter(uint32_t (&words)[4]) {
        if constexpr (Bytes == 1) {
            const uint32_t low[2] = {__byte_perm(words[0], words[2], 0x5410), __byte_perm(words[1], words[3], 0x5410)};
            const uint32_t high[2] = {__byte_perm(words[0], words[2], 0x7632), __byte_perm(words[1], words[3], 0x7632)};
            words[0] = low[0];
            words[1] = high[0];
            words[2] = low[1];
            words[3] = high[1];
        }
        transpose_in_quad(words);
    }
};

/** The most sums of a thread that stores them in a loop and moves the remaining ones to the registers that the loop
 * reads. In a network, a kernel's code is cold and runs about once, so short code ends earlier: on an H100, linear
 * layers of A-ViT were 12 % faster. With more sums, the moves cost more than the code. */
constexpr int most_moved_sums = 64;

/** A warp's sums of 16 rows, two rows for each four lanes, whose sums of channels 8 j + 2 (lane % 4) are at sums[4 j]
 * and sums[4 j + 2]. Four lanes exchange what they have, so each reads and stores 16 bytes. Changes the sums. */
template<class Op, int Channels>
__device__ inline void store_exchanged(const Arguments &a, const Epilogue<Op> &epilogue, const Place (&places)[2],
                                       SumOf<Op> *sums, const ChannelParams<Op> &params, int32_t channel, int32_t end) {
    constexpr int bytes = Storage<typename Op::Result>::bytes;
    using Lanes = QuadExchange<bytes>;
    constexpr int num_sums = Channels / 2, sums_at_once = 4 * Lanes::groups;
    const int32_t quad = threadIdx.x % 4;
    const auto load = [&](int half, int j) {
        const int32_t c = channel + 8 * j + Lanes::vector * quad;
        return places[half].exists() && c < end
                   ? *reinterpret_cast<const uint4 *>(places[half].in(a.residual) + c * bytes)
                   : uint4{};
    };
    uint4 ahead[2] = {};
    // Stores the channels from 8 j on of one of the two rows, whose sums begin at `first`.
    const auto store = [&](int half, int j, int first) {
        uint32_t added[4] = {ahead[half].x, ahead[half].y, ahead[half].z, ahead[half].w}, packed[4];
        if constexpr (Op::residual) {
            // The next ones arrive while these are used.
            ahead[half] = j + Lanes::groups < Channels / 8 ? load(half, j + Lanes::groups) : uint4{};
            Lanes::scatter(added);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t parts[Lanes::groups_of_word];
#pragma unroll
            for (int part = 0; part < Lanes::groups_of_word; part++) {
                const int group = i * Lanes::groups_of_word + part, at = first + 4 * group + 2 * half;
                const int32_t within = 8 * (j + group) + 2 * quad;
                float2 result = {0, 0};
                if (channel + within < end) {
                    result = epilogue(sums[at], sums[at + 1], params.from(within),
                                      Op::residual ? epilogue.unpack(added[i] >> (16 * part)) : float2{0, 0});
                }
                parts[part] = epilogue.pack(result);
            }
            packed[i] = Lanes::groups_of_word == 1 ? parts[0] : both_halves(parts[0], parts[Lanes::groups_of_word - 1]);
        }
        Lanes::gather(packed);
        const int32_t c = channel + 8 * j + Lanes::vector * quad;
        if (places[half].exists() && c < end) {
            *reinterpret_cast<uint4 *>(places[half].in(a.output) + c * bytes) = {packed[0], packed[1], packed[2],
                                                                                 packed[3]};
        }
    };
    if constexpr (num_sums <= most_moved_sums) {
        if constexpr (Op::residual) {
            ahead[0] = load(0, 0);
            ahead[1] = load(1, 0);
        }
#pragma unroll 1
        for (int j = 0; j < Channels / 8; j += Lanes::groups) {
            store(0, j, 0);
            store(1, j, 0);
#pragma unroll
            for (int i = 0; i + sums_at_once < num_sums; i++) {
                sums[i] = sums[i + sums_at_once];
            }
        }
    } else {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if constexpr (Op::residual) {
                ahead[half] = load(half, 0);
            }
#pragma unroll
            for (int j = 0; j < Channels / 8; j += Lanes::groups) {
                store(half, j, 4 * j);
            }
        }
    }
}

/** Stores a warp's sums of 16 rows as the tensor cores leave them: lane l holds, of rows l / 4 and l / 4 + 8, channels
 * 8 j + 2 (l % 4) and the next one, at sums[4 j] and sums[4 j + 2]. `places` are the two rows'. `channel` is the
 * first, none is stored from `end` on, and `params` has those of all `Channels`. */
template<class Op, int Channels>
__device__ inline void store_fragment(const Arguments &a, const Epilogue<Op> &epilogue, const Place (&places)[2],
                                      SumOf<Op> *sums, const ChannelParams<Op> &params, int32_t channel, int32_t end) {
    constexpr int bytes = Storage<typename Op::Result>::bytes;
    if constexpr (bytes < 4 && Channels % (64 / bytes) == 0) {
        store_exchanged<Op, Channels>(a, epilogue, places, sums, params, channel, end);
    } else {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            char *const to = places[half].in(a.output);
            const char *const residual = places[half].in(a.residual);
#pragma unroll
            for (int j = 0; j < Channels / 8; j++) {
                const int32_t within = 8 * j + 2 * static_cast<int32_t>(threadIdx.x % 4), c = channel + within;
                if (!places[half].exists() || c >= end) {
                    continue;
                }
                const float2 result = epilogue(sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1], params.from(within),
                                               residual_of<Op>(epilogue, residual, c));
                if constexpr (bytes == 4) {
                    *reinterpret_cast<float2 *>(to + c * 4) = result;
                } else if constexpr (bytes == 2) {
                    *reinterpret_cast<uint32_t *>(to + c * 2) = epilogue.pack(result);
                } else {
                    *reinterpret_cast<uint16_t *>(to + c) = static_cast<uint16_t>(epilogue.pack(result));
                }
            }
        }
    }
}

}  // namespace distile::tensor_core

#endif
