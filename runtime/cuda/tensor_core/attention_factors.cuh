/** \file
 * The factors of attention's products as mma.sync takes them, for each type: out of shared memory, and probabilities
 * out of the registers of scores.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ATTENTION_FACTORS_CUH
#define DISTILE_CUDA_TENSOR_CORE_ATTENTION_FACTORS_CUH

#include "attention_tiles.cuh"
#include "mma.cuh"

namespace distile::tensor_core {

/** Makes factors of what shared memory holds in float32. Other types are stored as they are multiplied. Products take
 * the leading bits, which the multiplication brings within 2^-11 of the number, as near as rounding does at worst. It
 * keeps NaN and numbers of TF32, and is one instruction, where rounding takes two. */
template<class Element, int Count> __device__ inline void round_factors(uint32_t (&factors)[Count]) {
    if constexpr (sizeof(Element) == 4) {
#pragma unroll
        for (uint32_t &factor : factors) {
            factor = __float_as_uint(__uint_as_float(factor) * (1 + 0x1p-11f));
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

/** Adds products of the probabilities of BlockKeys keys, which lie as scores do, with the tile of their values. Each
 * part is 16 rows of the warp. */
template<class Op, int BlockKeys, int Parts, int N, int K> __device__ inline void
add_values(float (&sums)[Parts][N][4], const float (&probabilities)[Parts][K][4], uint32_t values) {
    using Element = typename Op::Element;
    using Layout = HeadLayout<Op>;
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (sizeof(Element) == 2) {
        // Lanes name rows of four matrices: two of keys below each other, then two of the next 16 bytes.
        const uint32_t row = lane % 16, piece = lane / 16;
#pragma unroll
        for (int k = 0; k < BlockKeys / 16; k++) {
            uint32_t weights[Parts][4];
#pragma unroll
            for (int i = 0; i < 4 * Parts; i++) {
                const auto &own = probabilities[i / 4][2 * k + i % 4 / 2];
                weights[i / 4][i % 4] = Storage<Element>::pack(own[i % 2 * 2], own[i % 2 * 2 + 1]);
            }
#pragma unroll
            for (int n = 0; n < Layout::channels / 16; n++) {
                uint32_t value[4];
                load_transposed(value, values + Layout::template offset<BlockKeys>(16 * k + row, 2 * n + piece));
#pragma unroll
                for (int part = 0; part < Parts; part++) {
                    multiply_add(Element{}, sums[part][2 * n], weights[part], value);
                    multiply_add(Element{}, sums[part][2 * n + 1], weights[part], value + 2);
                }
            }
        }
    } else {
        // An instruction multiplies eight keys in any order: as factors 2 i and 2 i + 1 of a row's probabilities, a
        // lane gives those of its two neighbouring scores. Without conflicts, it loads values of these two keys.
        const uint32_t key = 2 * (lane % 4), place = lane / 4;
#pragma unroll
        for (int k = 0; k < BlockKeys / 8; k++) {
            uint32_t weights[Parts][4];
#pragma unroll
            for (int i = 0; i < 4 * Parts; i++) {
                weights[i / 4][i % 4] = round_to_tf32(probabilities[i / 4][k][i % 2 * 2 + i % 4 / 2]);
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
#pragma unroll
                    for (int part = 0; part < Parts; part++) {
                        multiply_add(Element{}, sums[part][first / 8 + i], weights[part], value);
                    }
                }
            });
        }
    }
}

}  // namespace distile::tensor_core

#endif
