/** \file
 * The factors of attention's products as mma.sync takes them, for each type: out of shared memory, and probabilities
 * out of the registers of scores.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ATTENTION_FACTORS_CUH
#define DISTILE_CUDA_TENSOR_CORE_ATTENTION_FACTORS_CUH

#include "attention_tiles.cuh"
#include "mma.cuh"

namespace distile::tensor_core {

/** Rounds factors that shared memory holds in float32. Other types are stored as they are multiplied. */
template<class Element, int Count> __device__ inline void round_factors(uint32_t (&factors)[Count]) {
    if constexpr (sizeof(Element) == 4) {
#pragma unroll
        for (uint32_t &factor : factors) {
            factor = round_to_tf32(__uint_as_float(factor));
        }
    }
}

/** Loads neighbouring words of shared memory. */
__device__ inline void load_words(uint32_t (&words)[1], uint32_t from) {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(words[0]) : "r"(from) : "memory");
}
__device__ inline void load_words(uint32_t (&words)[2], uint32_t from) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(from) : "memory");
}
__device__ inline void load_words(uint32_t (&words)[4], uint32_t from) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
}

/** Adds products of the probabilities of BlockKeys keys, which lie as scores do, with the tile of their values. */
template<class Op, int BlockKeys, class Sums, class Scores>
__device__ inline void add_values(Sums &sums, const Scores &probabilities, uint32_t values) {
    using Element = typename Op::Element;
    using Layout = HeadLayout<Op>;
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (sizeof(Element) == 2) {
        // Lanes name rows of four matrices: two of keys below each other, then two of the next 16 bytes.
        const uint32_t row = lane % 16, piece = lane / 16;
#pragma unroll
        for (int k = 0; k < BlockKeys / 16; k++) {
            uint32_t weights[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                weights[i] = Storage<Element>::pack(probabilities[8 * k + 2 * i], probabilities[8 * k + 2 * i + 1]);
            }
#pragma unroll
            for (int n = 0; n < Layout::channels / 16; n++) {
                uint32_t value[4];
                load_transposed(value, values + Layout::template offset<BlockKeys>(16 * k + row, 2 * n + piece));
                multiply_add(Element{}, sums[2 * n], weights, value);
                multiply_add(Element{}, sums[2 * n + 1], weights, value + 2);
            }
        }
    } else {
        // An instruction multiplies eight keys in any order: as factors 2 i and 2 i + 1 of a row's probabilities, a
        // lane gives those of its two neighbouring scores. Without conflicts, it loads values of these two keys.
        const uint32_t key = 2 * (lane % 4), place = lane / 4;
#pragma unroll
        for (int k = 0; k < BlockKeys / 8; k++) {
            uint32_t weights[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                weights[i] = round_to_tf32(probabilities[4 * k + i % 2 * 2 + i / 2]);
            }
            for_each_group<Layout::channels>([&](auto first, auto width) {
                const uint32_t byte = (first + width * place) * 4;
                uint32_t pair[2][width];
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    load_words(pair[i],
                               values + Layout::template offset<BlockKeys>(8 * k + key + i, byte / 16) + byte % 16);
                    round_factors<Element>(pair[i]);
                }
#pragma unroll
                for (int i = 0; i < width; i++) {
                    const uint32_t value[2] = {pair[0][i], pair[1][i]};
                    multiply_add(Element{}, sums[first / 8 + i], weights, value);
                }
            });
        }
    }
}

}  // namespace distile::tensor_core

#endif
