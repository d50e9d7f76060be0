/** \file
 * The types of an operator: its factors, their sums, and its results.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_TYPES_CUH
#define DISTILE_CUDA_TENSOR_CORE_TYPES_CUH

#include "kernels/tensor_core/arguments.h"
#include "kernels/tensor_core/elements.cuh"
#include "kernels/tensor_core/ptx.cuh"

namespace distile::tensor_core {

/** What inputs of a type are multiplied by, and the sums. */
template<class Element> struct Factors {
    using Sum = float;
    static constexpr bool quantized = false;
};
struct QuantizedFactors {
    using Sum = int32_t;
    static constexpr bool quantized = true;
};
template<> struct Factors<uint8_t> : QuantizedFactors {};
template<> struct Factors<int8_t> : QuantizedFactors {};

template<class Op> using SumOf = typename Factors<typename Op::Element>::Sum;
template<class Op> constexpr bool is_quantized = Factors<typename Op::Element>::quantized;

/** Two or four neighbouring sums. */
template<class Sum> struct SumVector;
template<> struct SumVector<float> {
    using Two = float2;
    using Four = float4;
};
template<> struct SumVector<int32_t> {
    using Two = int2;
    using Four = int4;
};

__device__ inline void add(float &sum, float more) {
    sum += more;
}
/** Wraps around. */
__device__ inline void add(int32_t &sum, int32_t more) {
    sum = static_cast<int32_t>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(more));
}

/** How results are stored: those of 16 bits in pairs. */
template<class Result> struct Storage;
template<> struct Storage<float> { static constexpr int bytes = 4; };
template<> struct Storage<Tf32> : Storage<float> {};
template<> struct Storage<Float16> {
    static constexpr int bytes = 2;
    __device__ static uint32_t pack(float low, float high) {
        uint32_t packed;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
        return packed;
    }
    __device__ static float2 unpack(uint32_t packed) {
        float2 pair;
        asm("{ .reg .f16 low, high;\n\t"
            "mov.b32 {low, high}, %2;\n\t"
            "cvt.f32.f16 %0, low;\n\t"
            "cvt.f32.f16 %1, high; }"
            : "=f"(pair.x), "=f"(pair.y)
            : "r"(packed));
        return pair;
    }
};
template<> struct Storage<Bfloat16> {
    static constexpr int bytes = 2;
    __device__ static uint32_t pack(float low, float high) {
        uint32_t packed;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
        return packed;
    }
    __device__ static float2 unpack(uint32_t packed) {
        return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000)};
    }
};
template<> struct Storage<uint8_t> { static constexpr int bytes = 1, least = 0; };
template<> struct Storage<int8_t> { static constexpr int bytes = 1, least = -128; };

/** Copies of the input, 16 bytes at a time. */
template<class Op, bool = is_quantized<Op>> class InputCopies {
public:
    __device__ explicit InputCopies(const Arguments &) {
    }
    /** Copies to shared memory, or writes what stands for zeros where the input may not be read. */
    __device__ void copy(uint32_t to, const char *from, bool is_in) const {
        copy_or_zero(to, from, is_in);
    }
};
template<class Op> class InputCopies<Op, true> {
public:
    __device__ explicit InputCopies(const Arguments &a) {
        // Eight threads share a line of the cache, and others have other lines.
        constexpr uint32_t piece = 16, pieces = Requantization::zero_point_bytes / piece;
        constexpr int words = 2 * Requantization::padded(Op::out_channels);
        const char *const padding = a.requantization + sizeof(Requantization) + words * sizeof(int32_t);
        zero_point_ = padding + (blockIdx.x * blockDim.x + threadIdx.x) % pieces * piece;
        is_zero_ = reinterpret_cast<const Requantization *>(a.requantization)->input_zero_point == 0;
    }
    __device__ void copy(uint32_t to, const char *from, bool is_in) const {
        copy_or_zero(to, is_in ? from : zero_point_, is_in || !is_zero_);
    }

private:
    const char *zero_point_;
    bool is_zero_;
};

}  // namespace distile::tensor_core

#endif
