/** \file
 * Attention's products by mma.sync, with its factors for each type: out of shared memory, and probabilities out of the
 * registers of scores.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ATTENTION_FACTORS_CUH
#define DISTILE_CUDA_TENSOR_CORE_ATTENTION_FACTORS_CUH

#include "kernels/tensor_core/attention_tiles.cuh"
#include "kernels/tensor_core/mma.cuh"

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

/** The part of an item whose 16 rows of a warp an instruction multiplies. The warps share each part of a block. */
__device__ inline AttentionItem part_of(AttentionItem item, int part, int part_rows) {
    item.first_row += part * part_rows;
    return item;
}

/** Loads the queries of a block's rows through shared memory, `Parts` times 16 rows of a warp. Called by all threads;
 * what they read there before is no longer needed then. */
template<class Op, int BlockRows, int Parts, int K> __device__ inline void
load_queries(uint32_t (&query)[Parts][K][4], const Tensor &queries, const AttentionItem &item, uint32_t memory) {
    using Layout = HeadLayout<Op>;
    constexpr int part_rows = BlockRows / Parts;
    // What is there is still read for the item before.
    __syncthreads();
    using RowCopier = TileCopier<Op, BlockRows, 2 * part_rows>;
    RowCopier rows;
    rows.find(item.rows, item.first_row, item.rows.count());
    rows.copy(memory, typename RowCopier::Source(queries, item), item.rows.count() - item.first_row);
    wait_for_copies();
    __syncthreads();
    // Lanes name rows of four matrices: two of rows below each other, then two of the next 16 bytes.
    const uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16, piece = lane / 16;
#pragma unroll
    for (int part = 0; part < Parts; part++) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            load_matrices(query[part][k],
                          memory + Layout::template offset<BlockRows>(part * part_rows + row, 2 * k + piece));
            round_factors<typename Op::Element>(query[part][k]);
        }
    }
    __syncthreads();
}

/** Adds products of queries with the tile of BlockKeys keys. */
template<class Op, int BlockKeys, int Parts, int N, int K>
__device__ inline void add_scores(float (&scores)[Parts][N][4], const uint32_t (&query)[Parts][K][4], uint32_t keys) {
    using Element = typename Op::Element;
    // Lanes name rows of four matrices: two of 16 bytes beside each other, then two of the next rows.
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = lane / 16 * 8 + lane % 8, piece = lane / 8 % 2;
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int n = 0; n < BlockKeys / 16; n++) {
            uint32_t key[4];
            load_matrices(key, keys + HeadLayout<Op>::template offset<BlockKeys>(16 * n + row, 2 * k + piece));
            round_factors<Element>(key);
#pragma unroll
            for (int part = 0; part < Parts; part++) {
                multiply_add(Element{}, scores[part][2 * n], query[part][k], key);
                multiply_add(Element{}, scores[part][2 * n + 1], query[part][k], key + 2);
            }
        }
    }
}

/** Adds products of weights of BlockKeys keys with the tile of their values. load(k, weights) gives the factors of an
 * instruction, for each part of 16 rows of the warp: those of 16 keys, or of 8 in float32. */
template<class Op, int BlockKeys, int Parts, int N, class Load>
__device__ inline void add_weighted(float (&sums)[Parts][N][4], const Load &load, uint32_t values) {
    using Element = typename Op::Element;
    using Layout = HeadLayout<Op>;
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (sizeof(Element) == 2) {
        // Lanes name rows of four matrices: two of keys below each other, then two of the next 16 bytes.
        const uint32_t row = lane % 16, piece = lane / 16;
#pragma unroll
        for (int k = 0; k < BlockKeys / 16; k++) {
            uint32_t weights[Parts][4];
            load(k, weights);
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
        // An instruction multiplies eight keys in any order: as factors 2 i and 2 i + 1 of a row's weights, a lane
        // gives those of two neighbouring keys. Without conflicts, it loads values of these two keys.
        const uint32_t key = 2 * (lane % 4), place = lane / 4;
#pragma unroll
        for (int k = 0; k < BlockKeys / 8; k++) {
            uint32_t weights[Parts][4];
            load(k, weights);
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

/** Adds products of values with probabilities, which lie in registers as scores do. */
template<class Op, int BlockKeys, int Parts, int N, int K> __device__ inline void
add_values(float (&sums)[Parts][N][4], const float (&probabilities)[Parts][K][4], uint32_t values) {
    using Element = typename Op::Element;
    const auto load = [&](int k, uint32_t(&weights)[Parts][4]) {
#pragma unroll
        for (int i = 0; i < 4 * Parts; i++) {
            if constexpr (sizeof(Element) == 2) {
                const auto &own = probabilities[i / 4][2 * k + i % 4 / 2];
                weights[i / 4][i % 4] = Storage<Element>::pack(own[i % 2 * 2], own[i % 2 * 2 + 1]);
            } else {
                weights[i / 4][i % 4] = round_to_tf32(probabilities[i / 4][k][i % 2 * 2 + i % 4 / 2]);
            }
        }
    };
    add_weighted<Op, BlockKeys>(sums, load, values);
}

}  // namespace distile::tensor_core

#endif
