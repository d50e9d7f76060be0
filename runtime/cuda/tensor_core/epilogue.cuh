/** \file
 * From sums to stored results: bias, residual, activation, and the output's type.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_EPILOGUE_CUH
#define DISTILE_CUDA_TENSOR_CORE_EPILOGUE_CUH

#include "rows.cuh"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cute/numeric/numeric_types.hpp>

namespace distile::tensor_core {

enum class Activation { None, Relu, Relu6, Silu, Gelu };

/** NaN stays NaN. */
template<Activation Kind> __device__ inline float activate(float x) {
    switch (Kind) {
    case Activation::Relu:
        return x < 0 ? 0 : x;
    case Activation::Relu6:
        return x < 0 ? 0 : x > 6 ? 6 : x;
    case Activation::Silu:
        return x / (1 + expf(-x));
    case Activation::Gelu:
        return .5f * x * (1 + erff(x * .70710678f));
    case Activation::None:
        break;
    }
    return x;
}

/** How an operator's elements are stored. */
template<class Element> struct Storage;
template<> struct Storage<cute::tfloat32_t> { static constexpr int bytes = 4; };
template<> struct Storage<cute::half_t> {
    static constexpr int bytes = 2;
    __device__ static uint32_t pack(float low, float high) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t *>(&pair);
    }
    __device__ static float2 unpack(uint32_t packed) {
        return __half22float2(*reinterpret_cast<const __half2 *>(&packed));
    }
};
template<> struct Storage<cute::bfloat16_t> {
    static constexpr int bytes = 2;
    __device__ static uint32_t pack(float low, float high) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t *>(&pair);
    }
    __device__ static float2 unpack(uint32_t packed) {
        return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&packed));
    }
};

/** Where a row's result goes. */
struct Place {
    uint32_t xy;     ///< x | y << 16.
    uint32_t image;  ///< Or `nowhere`.
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
    /** The pixel's first channel in a tensor; null for nowhere. */
    __device__ char *in(const Tensor &tensor) const {
        const int32_t x = static_cast<int32_t>(xy & 0xffff), y = static_cast<int32_t>(xy >> 16);
        const int32_t at = static_cast<int32_t>(image) * tensor.stride_n + y * tensor.stride_h + x * tensor.stride_w;
        return image == nowhere ? nullptr : tensor.data + int64_t{at} * 16;
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

/** Adds bias and residual to two neighbouring sums and activates them. `residual` is null where a row is not stored. */
template<class Op>
__device__ inline float2 finish(float2 sum, const float *bias, const char *residual, int32_t channel) {
    using Stored = Storage<typename Op::Element>;
    const float2 shift = __ldg(reinterpret_cast<const float2 *>(bias + channel));
    sum.x += shift.x;
    sum.y += shift.y;
    if constexpr (Op::residual) {
        float2 added = {0, 0};
        if (residual) {
            if constexpr (Stored::bytes == 4) {
                added = *reinterpret_cast<const float2 *>(residual + channel * 4);
            } else {
                added = Stored::unpack(*reinterpret_cast<const uint32_t *>(residual + channel * 2));
            }
        }
        sum.x += added.x;
        sum.y += added.y;
    }
    return {activate<Op::activation>(sum.x), activate<Op::activation>(sum.y)};
}

/** Stores eight neighbouring results of a row, whose sums are complete. */
template<class Op>
__device__ inline void store_row(const Arguments &a, const Place &place, const float (&sums)[8], int32_t channel) {
    using Stored = Storage<typename Op::Element>;
    char *const to = place.in(a.output);
    if (!to || channel >= Op::out_channels) {
        return;
    }
    const char *const residual = Op::residual ? place.in(a.residual) : nullptr;
    float2 results[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        results[i] = finish<Op>({sums[2 * i], sums[2 * i + 1]}, a.bias, residual, channel + 2 * i);
    }
    if constexpr (Stored::bytes == 4) {
        auto *const out = reinterpret_cast<float4 *>(to + channel * 4);
        out[0] = {results[0].x, results[0].y, results[1].x, results[1].y};
        out[1] = {results[2].x, results[2].y, results[3].x, results[3].y};
    } else {
        *reinterpret_cast<uint4 *>(to + channel * 2) = {
            Stored::pack(results[0].x, results[0].y), Stored::pack(results[1].x, results[1].y),
            Stored::pack(results[2].x, results[2].y), Stored::pack(results[3].x, results[3].y)};
    }
}

/** Stores a warp's sums of 16 rows as the tensor cores leave them: lane l holds, of rows l / 4 and l / 4 + 8, channels
 * 8 j + 2 (l % 4) and the next one, at sums[4 j] and sums[4 j + 2]. `places` are the two rows'. `channel` is the
 * first. */
template<class Op, int Channels, class Sums>
__device__ inline void store_fragment(const Arguments &a, const Place (&places)[2], const Sums &sums, int32_t channel) {
    using Stored = Storage<typename Op::Element>;
    const int32_t quad = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        char *const to = places[half].in(a.output);
        const char *const residual = Op::residual ? places[half].in(a.residual) : nullptr;
        if constexpr (Stored::bytes == 4) {
#pragma unroll
            for (int j = 0; j < Channels / 8; j++) {
                const int32_t c = channel + 8 * j + 2 * quad;
                if (to && c < Op::out_channels) {
                    *reinterpret_cast<float2 *>(to + c * 4) =
                        finish<Op>({sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]}, a.bias, residual, c);
                }
            }
        } else if constexpr (Channels % 32 != 0) {
#pragma unroll
            for (int j = 0; j < Channels / 8; j++) {
                const int32_t c = channel + 8 * j + 2 * quad;
                if (to && c < Op::out_channels) {
                    const float2 result =
                        finish<Op>({sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]}, a.bias, residual, c);
                    *reinterpret_cast<uint32_t *>(to + c * 2) = Stored::pack(result.x, result.y);
                }
            }
        } else {
            // Four lanes exchange what they have of four groups of eight channels, so each stores a whole one.
#pragma unroll
            for (int j = 0; j < Channels / 8; j += 4) {
                uint32_t packed[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int32_t c = channel + 8 * (j + i) + 2 * quad;
                    float2 result = {0, 0};
                    if (c < Op::out_channels) {
                        result = finish<Op>({sums[4 * (j + i) + 2 * half], sums[4 * (j + i) + 2 * half + 1]}, a.bias,
                                            residual, c);
                    }
                    packed[i] = Stored::pack(result.x, result.y);
                }
                transpose_in_quad(packed);
                const int32_t c = channel + 8 * (j + quad);
                if (to && c < Op::out_channels) {
                    *reinterpret_cast<uint4 *>(to + c * 2) = {packed[0], packed[1], packed[2], packed[3]};
                }
            }
        }
    }
}

}  // namespace distile::tensor_core

#endif
