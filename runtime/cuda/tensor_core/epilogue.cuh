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

enum class Activation { None, Relu, Relu6, Silu, Gelu, Sigmoid, Hardsigmoid, Hardswish };

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
    case Activation::Sigmoid:
        return 1 / (1 + expf(-x));
    case Activation::Hardsigmoid:
        return x < -3 ? 0 : x > 3 ? 1 : (x + 3) / 6;
    case Activation::Hardswish:
        // At minus infinity 0 * x is NaN, as in PyTorch.
        return x * ((x < -3 ? 0 : x > 3 ? 6 : x + 3) / 6);
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

/** Adds the bias and what else is given to two neighbouring sums and activates them. */
template<class Op> __device__ inline float2 finish(float2 sum, const float *bias, float2 added = {0, 0}) {
    const float2 shift = *reinterpret_cast<const float2 *>(bias);
    return {activate<Op::activation>(sum.x + shift.x + added.x), activate<Op::activation>(sum.y + shift.y + added.y)};
}

/** Two neighbouring values of a residual's row, which is null where a row is not stored. */
template<class Op> __device__ inline float2 residual_of(const char *row, int32_t channel) {
    using Stored = Storage<typename Op::Element>;
    if (!Op::residual || !row) {
        return {0, 0};
    }
    if constexpr (Stored::bytes == 4) {
        return *reinterpret_cast<const float2 *>(row + channel * 4);
    } else {
        return Stored::unpack(*reinterpret_cast<const uint32_t *>(row + channel * 2));
    }
}

/** Stores eight neighbouring results of a row, whose sums are complete. `bias` is that of the first. */
template<class Op> __device__ inline void store_row(const Arguments &a, const Place &place, const float (&sums)[8],
                                                    const float *bias, int32_t channel) {
    using Stored = Storage<typename Op::Element>;
    char *const to = place.in(a.output);
    if (!to || channel >= Op::out_channels) {
        return;
    }
    const char *const residual = Op::residual ? place.in(a.residual) : nullptr;
    float2 results[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        results[i] =
            finish<Op>({sums[2 * i], sums[2 * i + 1]}, bias + 2 * i, residual_of<Op>(residual, channel + 2 * i));
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

/** Half of a warp's sums of 16 rows, a row for each four lanes, whose sums of channels 8 j + 2 (lane % 4) are at
 * sums[4 j]. Four lanes exchange what they have of four groups of eight channels, so each reads and stores a whole one.
 */
template<class Op, int Channels, class Sums>
__device__ inline void store_exchanged(const Arguments &a, const Place &place, const Sums &sums, int first,
                                       const float *bias, int32_t channel) {
    using Stored = Storage<typename Op::Element>;
    const int32_t quad = threadIdx.x % 4;
    char *const to = place.in(a.output);
    const char *const residual = Op::residual ? place.in(a.residual) : nullptr;
    const auto load = [&](int j) {
        const int32_t c = channel + 8 * (j + quad);
        return residual && c < Op::out_channels ? *reinterpret_cast<const uint4 *>(residual + c * 2) : uint4{};
    };
    uint4 ahead = Op::residual ? load(0) : uint4{};
#pragma unroll
    for (int j = 0; j < Channels / 8; j += 4) {
        uint32_t added[4] = {ahead.x, ahead.y, ahead.z, ahead.w}, packed[4];
        if constexpr (Op::residual) {
            // The next ones arrive while these are used.
            ahead = j + 4 < Channels / 8 ? load(j + 4) : uint4{};
            transpose_in_quad(added);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = 4 * (j + i) + first;
            const int32_t within = 8 * (j + i) + 2 * quad;
            float2 result = {0, 0};
            if (channel + within < Op::out_channels) {
                result = finish<Op>({sums[at], sums[at + 1]}, bias + within,
                                    Op::residual ? Stored::unpack(added[i]) : float2{0, 0});
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

/** Stores a warp's sums of 16 rows as the tensor cores leave them: lane l holds, of rows l / 4 and l / 4 + 8, channels
 * 8 j + 2 (l % 4) and the next one, at sums[4 j] and sums[4 j + 2]. `places` are the two rows'. `channel` is the
 * first, and `bias` has those of all `Channels`. */
template<class Op, int Channels, class Sums> __device__ inline void
store_fragment(const Arguments &a, const Place (&places)[2], const Sums &sums, const float *bias, int32_t channel) {
    using Stored = Storage<typename Op::Element>;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if constexpr (Stored::bytes == 2 && Channels % 32 == 0) {
            store_exchanged<Op, Channels>(a, places[half], sums, 2 * half, bias, channel);
        } else {
            char *const to = places[half].in(a.output);
            const char *const residual = Op::residual ? places[half].in(a.residual) : nullptr;
#pragma unroll
            for (int j = 0; j < Channels / 8; j++) {
                const int32_t within = 8 * j + 2 * static_cast<int32_t>(threadIdx.x % 4), c = channel + within;
                if (!to || c >= Op::out_channels) {
                    continue;
                }
                const float2 result = finish<Op>({sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]}, bias + within,
                                                 residual_of<Op>(residual, c));
                if constexpr (Stored::bytes == 4) {
                    *reinterpret_cast<float2 *>(to + c * 4) = result;
                } else {
                    *reinterpret_cast<uint32_t *>(to + c * 2) = Stored::pack(result.x, result.y);
                }
            }
        }
    }
}

}  // namespace distile::tensor_core

#endif
