/** \file
 * Pieces of 16 bytes, in which a stage reads and writes neighbouring channels of a pixel.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_PIECES_CUH
#define DISTILE_CUDA_KERNELS_STAGE_PIECES_CUH

#include "kernels/tensor_core/types.cuh"
#include "runtime/cuda/kernels/stage_architecture.cuh"
#include <type_traits>

namespace distile {

template<class Element> constexpr int64_t element_bytes = tc::Storage<Element>::bytes;
/** The channels of a piece: 8, 4 of float32, or 16 of quantized numbers. */
template<class Element> constexpr uint32_t piece_channels = stage_piece_bytes / tc::Storage<Element>::bytes;
/** The channels that a step of a reduction multiplies: 8 pieces. */
template<class Element> constexpr uint32_t step_channels = stage_row_bytes / tc::Storage<Element>::bytes;
/** Whether elements are quantized. Their sums are integers. */
template<class Element> constexpr bool is_quantized_element = tc::Factors<Element>::quantized;
template<class Element> using SumOfElements = typename tc::Factors<Element>::Sum;
template<class Element> using WeightOf = std::conditional_t<is_quantized_element<Element>, int8_t, Element>;
/** The pieces of the 8 neighbouring channels that products leave in a thread, which may be of float32 where the input
 * is quantized. */
template<class Element> constexpr uint32_t pieces_of_eight = piece_channels<Element> == 8 ? 1 : 2;

/** A piece as numbers. */
template<class Element> __device__ void unpack_channels(const uint4 &packed, float (&values)[piece_channels<Element>]) {
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if constexpr (piece_channels<Element> == 4) {
            values[i] = __uint_as_float(words[i]);
        } else if constexpr (is_quantized_element<Element>) {
#pragma unroll
            for (uint32_t byte = 0; byte < 4; byte++) {
                values[4 * i + byte] = static_cast<float>(static_cast<Element>(words[i] >> 8 * byte));
            }
        } else {
            const float2 pair = tc::Storage<Element>::unpack(words[i]);
            values[2 * i] = pair.x;
            values[2 * i + 1] = pair.y;
        }
    }
}

/** A piece as the integers that it stores. */
template<class Element>
__device__ void unpack_channels(const uint4 &packed, int32_t (&values)[piece_channels<Element>]) {
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (uint32_t i = 0; i < piece_channels<Element>; i++) {
        values[i] = static_cast<Element>(words[i / 4] >> 8 * (i % 4));
    }
}

template<class Element> __device__ uint4 pack_channels(const float (&values)[piece_channels<Element>]) {
    if constexpr (piece_channels<Element> == 4) {
        return {__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
                __float_as_uint(values[3])};
    } else {
        using Storage = tc::Storage<Element>;
        return {Storage::pack(values[0], values[1]), Storage::pack(values[2], values[3]),
                Storage::pack(values[4], values[5]), Storage::pack(values[6], values[7])};
    }
}

/** Where the piece is that begins with an element of a tensor. */
template<class Element> __device__ const uint4 *piece_at(const char *data, int64_t element) {
    return reinterpret_cast<const uint4 *>(data + element * element_bytes<Element>);
}
template<class Element> __device__ uint4 *piece_at(char *data, int64_t element) {
    return reinterpret_cast<uint4 *>(data + element * element_bytes<Element>);
}

}  // namespace distile

#endif
