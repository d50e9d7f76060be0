/** \file
 * Activations in float32: as kernels for NVIDIA GPUs compute them, and those for tensor cores.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ACTIVATION_CUH
#define DISTILE_CUDA_TENSOR_CORE_ACTIVATION_CUH

#include "facts/activations.h"

namespace distile {

__device__ __forceinline__ float at_least(float x, float low) {
    return x < low ? low : x;
}
__device__ __forceinline__ float limited(float x, float low, float high) {
    return x < low ? low : x > high ? high : x;
}

#define AT_LEAST(x, low) at_least(x, low)
#define LIMIT(x, low, high) limited(x, low, high)
#define ONE_PLUS_EXP_MINUS(x) (1 + expf(-(x)))
#define ERF(x) erff(x)
#define TANH(x) tanhf(x)
#define KEEP_NAN(x, value) (value)
#define CHOOSE(condition, value, other) ((condition) ? (value) : (other))
#define DISTILE_ROW(number, name, NAME, value, gradient)                                                               \
    case number:                                                                                                       \
        return value;

/** The activation with this number. NaN stays NaN. */
__device__ __forceinline__ float activated(int activation, float x, float slope) {
    switch (activation) { DISTILE_ACTIVATIONS(DISTILE_ROW) }
    return x;
}

#undef DISTILE_ROW
#undef CHOOSE
#undef KEEP_NAN
#undef TANH
#undef ERF
#undef ONE_PLUS_EXP_MINUS
#undef LIMIT
#undef AT_LEAST

namespace tensor_core {

#define DISTILE_ROW(number, name, NAME, value, gradient) name = number,
/** By their names in operator files. */
enum class Activation { DISTILE_ACTIVATIONS(DISTILE_ROW) };
#undef DISTILE_ROW

/** x times the share of the normal distribution that is below x, by equation 26.2.17 of Abramowitz and Stegun: the
 * share is off by less than 5e-7. erff() takes twice as long, while the tensor cores wait. */
__device__ inline float gelu(float x) {
    float t, density;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(.2316419f, fabsf(x), 1)));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(density) : "f"(x * x * -.72134752f));
    const float slope =
        fmaf(t, fmaf(t, fmaf(t, fmaf(t, .53070271f, -.72657601f), .71070687f), -.14224837f), .12741480f);
    const float tail = density * t * slope;
    return x * (x > 0 ? 1 - tail : tail);
}

/** NaN stays NaN. */
template<Activation Kind> __device__ inline float activate(float x, float slope) {
    if constexpr (Kind == Activation::gelu) {
        return gelu(x);
    }
    return activated(static_cast<int>(Kind), x, slope);
}

}  // namespace tensor_core

}  // namespace distile

#endif
