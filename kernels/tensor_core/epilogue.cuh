/** \file
 * From sums to results: bias, residual, activation, and the output's type.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_EPILOGUE_CUH
#define DISTILE_CUDA_TENSOR_CORE_EPILOGUE_CUH

#include "kernels/tensor_core/activation.cuh"
#include "kernels/tensor_core/types.cuh"

namespace distile::tensor_core {

/** What results need of the output channels from one on. */
template<class Op> struct ChannelParams {
    /** Words of 32 bits for each channel. */
    static constexpr int words = is_quantized<Op> ? 3 : 1;

    const float *bias;
    const int32_t *offsets;  // Offsets and multipliers are set for quantized operators only.
    const float *multipliers;

    /** The parameters of all channels, in global memory. */
    __device__ static ChannelParams of(const Arguments &a) {
        if constexpr (!is_quantized<Op>) {
            return {a.bias, nullptr, nullptr};
        } else {
            constexpr int padded = Requantization::padded(Op::out_channels);
            const auto *const offsets = reinterpret_cast<const int32_t *>(a.requantization + sizeof(Requantization));
            return {a.bias, offsets, reinterpret_cast<const float *>(offsets + padded)};
        }
    }
    /** The parameters in words that were copied. The words of a channel are `channels` words apart. */
    __device__ static ChannelParams in(const uint32_t *copied, int channels) {
        const auto *const first = reinterpret_cast<const float *>(copied);
        return {first, reinterpret_cast<const int32_t *>(copied + channels), first + 2 * channels};
    }
    __device__ ChannelParams from(int32_t channel) const {
        if constexpr (!is_quantized<Op>) {
            return {bias + channel, nullptr, nullptr};
        } else {
            return {bias + channel, offsets + channel, multipliers + channel};
        }
    }
    __device__ uint32_t word(int index, int32_t channel) const {
        return index == 0   ? __float_as_uint(__ldg(bias + channel))
               : index == 1 ? static_cast<uint32_t>(__ldg(offsets + channel))
                            : __float_as_uint(__ldg(multipliers + channel));
    }
};

/** Makes results of sums. */
template<class Op, bool = is_quantized<Op>> class Epilogue {
    using Stored = Storage<typename Op::Result>;

public:
    __device__ explicit Epilogue(const Arguments &a) : slope_(a.slope) {
    }
    /** Adds to two neighbouring sums what is to be added, and activates them. */
    __device__ float2 operator()(float first, float second, const ChannelParams<Op> &params, float2 added) const {
        const float2 bias = *reinterpret_cast<const float2 *>(params.bias);
        return {activate<Op::activation>(first + bias.x + added.x, slope_),
                activate<Op::activation>(second + bias.y + added.y, slope_)};
    }
    __device__ uint32_t pack(float2 results) const {
        return Stored::pack(results.x, results.y);
    }
    __device__ float2 unpack(uint32_t residuals) const {
        return Stored::unpack(residuals);
    }

private:
    float slope_;
};

/** For quantized operators. Results equal those of code for CPUs to the bit, so nothing may be fused. */
template<class Op> class Epilogue<Op, true> {
    using Stored = Storage<typename Op::Result>;
    static constexpr bool in_output_units = Op::activation == Activation::none || Op::activation == Activation::relu;

public:
    __device__ explicit Epilogue(const Arguments &a) : slope_(a.slope) {
        const auto &header = *reinterpret_cast<const Requantization *>(a.requantization);
        if constexpr (Stored::bytes == 1) {
            output_factor_ = __ldg(&header.output_factor);
            output_zero_point_ = __ldg(&header.output_zero_point);
            residual_factor_ = __ldg(&header.residual_factor);
            residual_zero_point_ = __ldg(&header.residual_zero_point);
        }
    }
    __device__ float2 operator()(int32_t first, int32_t second, const ChannelParams<Op> &params, float2 added) const {
        const uint2 offset = load_pair(params.offsets), multiplier = load_pair(params.multipliers),
                    bias = load_pair(params.bias);
        return {value(first, offset.x, __uint_as_float(multiplier.x), __uint_as_float(bias.x), added.x),
                value(second, offset.y, __uint_as_float(multiplier.y), __uint_as_float(bias.y), added.y)};
    }
    /** Into the lower 16 bits. */
    __device__ uint32_t pack(float2 results) const {
        return __byte_perm(stored(results.x), stored(results.y), 0x0040);
    }
    /** Unpacks the lower 16 bits. */
    __device__ float2 unpack(uint32_t residuals) const {
        using Result = typename Op::Result;
        return {residual(static_cast<Result>(residuals)), residual(static_cast<Result>(residuals >> 8))};
    }

private:
    /** Each time again: registers cannot hold the parameters of all channels until the next row needs them. */
    __device__ static uint2 load_pair(const void *from) {
        uint2 pair;
        asm volatile("ld.v2.u32 {%0, %1}, [%2];" : "=r"(pair.x), "=r"(pair.y) : "l"(from));
        return pair;
    }
    __device__ float value(int32_t sum, uint32_t offset, float multiplier, float bias, float added) const {
        add(sum, static_cast<int32_t>(offset));
        const float real = __fadd_rn(__fmul_rn(__int2float_rn(sum), multiplier), bias);
        return activate<Op::activation>(Op::residual ? __fadd_rn(real, added) : real, slope_);
    }
    /** A byte. NaN becomes the least one. */
    __device__ uint32_t stored(float result) const {
        // Near this number, float32 has integers only, which its lowest bits hold.
        constexpr float to_integer = 0x1.8p23f;
        const float scaled = in_output_units ? result : __fmul_rn(result, output_factor_);
        const float least = __int2float_rn(Stored::least - output_zero_point_);
        const float clamped = fminf(fmaxf(scaled, least), least + 255);
        return __float_as_uint(__fadd_rn(clamped, to_integer)) + static_cast<uint32_t>(output_zero_point_);
    }
    __device__ float residual(int32_t stored) const {
        return __fmul_rn(__int2float_rn(stored - residual_zero_point_), residual_factor_);
    }

    int32_t output_zero_point_ = 0, residual_zero_point_ = 0;
    float output_factor_ = 1, residual_factor_ = 1;
    float slope_;
};

}  // namespace distile::tensor_core

#endif
