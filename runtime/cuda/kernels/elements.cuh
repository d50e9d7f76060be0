/** \file
 * Elements of any type, and vectors of them.
 */
#ifndef DISTILE_CUDA_KERNELS_ELEMENTS_CUH
#define DISTILE_CUDA_KERNELS_ELEMENTS_CUH

#include "facts/types.h"
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <distile/distile.h>
#include <type_traits>

namespace distile {

/** An element of a type of facts/types.h, by its number, and its conversions. */
template<int number> struct Stored;

#define CHOOSE(condition, bits, other) ((condition) ? (bits) : (other))
#define FLOAT_OF(bits) __uint_as_float(bits)
#define BITS_OF(value) __float_as_uint(value)
#define LESSER(a, b) min(a, b)
#define DISTILE_ROW(number, name, NAME, bits_of_element, ONNX, digits, widened, narrowed)                              \
    template<> struct Stored<number> {                                                                                 \
        std::conditional_t<(bits_of_element) == 8, uint8_t,                                                            \
                           std::conditional_t<(bits_of_element) == 16, uint16_t, uint32_t>>                            \
            bits;                                                                                                      \
    };                                                                                                                 \
    inline __device__ float to_float(Stored<number> stored) {                                                          \
        const uint32_t x = stored.bits;                                                                                \
        return __uint_as_float(widened);                                                                               \
    }                                                                                                                  \
    inline __device__ void from_float(float value, Stored<number> &to) {                                               \
        const uint32_t x = __float_as_uint(value);                                                                     \
        to.bits = narrowed;                                                                                            \
    }
DISTILE_FLOAT_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
#undef LESSER
#undef BITS_OF
#undef FLOAT_OF
#undef CHOOSE

// Types with instructions of their own. From float32 they round to the nearest, ties to even.
inline __device__ float to_float(float value) {
    return value;
}
inline __device__ void from_float(float value, float &to) {
    to = value;
}
inline __device__ float to_float(__half value) {
    return __half2float(value);
}
inline __device__ void from_float(float value, __half &to) {
    to = __float2half_rn(value);
}
inline __device__ float to_float(__nv_bfloat16 value) {
    return __bfloat162float(value);
}
inline __device__ void from_float(float value, __nv_bfloat16 &to) {
    to = __float2bfloat16_rn(value);
}

/** The class in which kernels compute with a type, by its number. */
template<int number> struct ElementOf { using Type = Stored<number>; };
template<> struct ElementOf<DISTILE_FLOAT32> { using Type = float; };
template<> struct ElementOf<DISTILE_FLOAT16> { using Type = __half; };
template<> struct ElementOf<DISTILE_BFLOAT16> { using Type = __nv_bfloat16; };

/** The elements read or written at once. */
template<typename Element, uint32_t size> struct alignas(size * sizeof(Element)) Vector { Element elements[size]; };

}  // namespace distile

#endif
