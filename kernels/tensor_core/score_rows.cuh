/** \file
 * Rows of scores or probabilities between global memory and the registers of tensor cores, by way of shared memory: a
 * row may begin at any element, and its columns are consecutive or those of listed keys.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_SCORE_ROWS_CUH
#define DISTILE_CUDA_TENSOR_CORE_SCORE_ROWS_CUH

#include "kernels/tensor_core/attention_factors.cuh"

namespace distile::tensor_core {

/** How a warp goes through 16 rows of BlockKeys scores: neighbouring lanes have neighbouring units of `Width` scores.
 */
template<int BlockKeys, int Width> struct ScoreUnits {
    static constexpr int of_row = BlockKeys / Width, count = 16 * of_row / 32;
    static constexpr int places = of_row > 32 ? of_row / 32 : 1;  ///< Different ones of a lane.

    static_assert(of_row % 32 == 0 || 32 % of_row == 0);

    __device__ static uint32_t row(int i) {
        return of_row >= 32 ? i / places : (i * 32 + threadIdx.x % 32) / of_row;
    }
    /** The first of its scores, in a row. */
    __device__ static uint32_t place(int i) {
        return Width * (i % places * 32 + threadIdx.x % 32 % of_row);
    }
};

/** The 16 rows of a warp in an item's score matrix. Functions are called by whole warps. */
template<class Op, int BlockKeys> class ScoreRows {
    using Element = typename Op::Element;
    using Bits = std::conditional_t<sizeof(Element) == 2, uint16_t, uint32_t>;  ///< A score as it is stored.
    static constexpr int bytes = sizeof(Element);
    static constexpr int row_bytes = (BlockKeys + 8) * bytes;  ///< Neighbouring rows lie in other banks.

public:
    /** The shared memory of 16 rows. */
    static constexpr int tile_bytes = 16 * row_bytes;

    ScoreRows() = default;
    __device__ ScoreRows(const ScoreTensor &scores, const AttentionItem &item, uint32_t tile) : tile_(tile) {
        const uint32_t first = item.first_row + threadIdx.x / 32 * 16, own = threadIdx.x % 16;
        num_rows_ = first < item.rows.count() ? min(item.rows.count() - first, 16) : 0;
        if (own < num_rows_) {
            row_ = reinterpret_cast<uint64_t>(scores.data) +
                   (int64_t{item.image} * scores.stride_image + int64_t{item.head} * scores.stride_head +
                    int64_t{item.rows.at(first + own)} * scores.stride_row) *
                       bytes;
        }
        in_pairs_ = bytes == 2 && has_neighbours(item) && __all_sync(~0u, row_ % 4 == 0);
    }

    /** Puts scores into shared memory as tensor cores leave them. */
    __device__ void put(const float (&scores)[BlockKeys / 8][4]) const {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < BlockKeys / 4; i++) {
            const float *const own = scores[i / 2] + i % 2 * 2;
            const uint32_t to = tile_ + (lane / 4 + i % 2 * 8) * row_bytes + (i / 2 * 8 + lane % 4 * 2) * bytes;
            if constexpr (bytes == 2) {
                put_word(to, Storage<Element>::pack(own[0], own[1]));
            } else {
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(own[0]), "f"(own[1]) : "memory");
            }
        }
        __syncwarp();
    }
    /** Stores what is there as the scores of the keys from the first on. */
    __device__ void store(const AttentionItem &item, uint32_t first) const {
        if (in_pairs_) {
            store_units<2>(item, first);
        } else {
            store_units<1>(item, first);
        }
    }

    /** Looks up where the scores of the keys from the first on lie. */
    __device__ void find(const AttentionItem &item, uint32_t first) {
        if (in_pairs_) {
            find_units<2>(item, first);
        } else {
            find_units<1>(item, first);
        }
    }
    /** Loads those that were found. Other scores than those of the item's keys and rows are 0. */
    __device__ void load() {
        if (in_pairs_) {
            load_units<2>();
        } else {
            load_units<1>();
        }
    }
    /** Puts them into shared memory. */
    __device__ void put() const {
        if (in_pairs_) {
            put_units<2>();
        } else {
            put_units<1>();
        }
        __syncwarp();
    }
    /** The factors of the product with the k-th 16 keys, or 8 in float32. */
    __device__ void take(int k, uint32_t (&weights)[4]) const {
        const uint32_t lane = threadIdx.x % 32;
        if constexpr (bytes == 2) {
            // Lanes name rows of four matrices: two of rows below each other, then two of the next 16 bytes.
            load_matrices(weights, tile_ + lane % 16 * row_bytes + 32 * k + lane / 16 * 16);
        } else {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t pair[2];
                load_words(pair, tile_ + (lane / 4 + 8 * half) * row_bytes + 32 * k + lane % 4 * 8);
                weights[half] = pair[0];
                weights[2 + half] = pair[1];
            }
            round_factors<Element>(weights);
        }
    }

private:
    static constexpr uint32_t nowhere = ~0u;

    template<int Width> using Units = ScoreUnits<BlockKeys, Width>;
    template<int Width> using Unit = std::conditional_t<Width == 1, Bits, uint32_t>;

    /** Whether neighbouring keys have neighbouring columns. */
    __device__ static bool has_neighbours(const AttentionItem &item) {
        return Op::packed_columns || item.keys.has_every();
    }
    __device__ static uint32_t column_of(const AttentionItem &item, uint32_t place) {
        return Op::packed_columns ? place : item.keys.at(place);
    }
    /** The address of a row among the warp's 16, if the row is below num_rows_. */
    __device__ Bits *address(uint32_t row) const {
        return reinterpret_cast<Bits *>(__shfl_sync(~0u, row_, static_cast<int>(row)));
    }
    __device__ static void put_word(uint32_t to, uint32_t word) {
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
    }

    template<int Width> __device__ void store_units(const AttentionItem &item, uint32_t first) const {
        uint32_t columns[Units<Width>::places];
#pragma unroll
        for (int i = 0; i < Units<Width>::places; i++) {
            columns[i] = column_of(item, min(first + Units<Width>::place(i), item.num_keys - 1));
        }
#pragma unroll
        for (int i = 0; i < Units<Width>::count; i++) {
            const uint32_t row = Units<Width>::row(i), place = Units<Width>::place(i);
            const uint32_t from = tile_ + row * row_bytes + place * bytes, left = item.num_keys - first;
            Bits *const to = address(row) + columns[i % Units<Width>::places];
            uint32_t unit;
            if constexpr (Width * bytes == 4) {
                asm volatile("ld.shared.b32 %0, [%1];" : "=r"(unit) : "r"(from) : "memory");
            } else {
                asm volatile("ld.shared.u16 %0, [%1];" : "=r"(unit) : "r"(from) : "memory");
            }
            if (row < num_rows_ && place + Width <= left) {
                *reinterpret_cast<Unit<Width> *>(to) = static_cast<Unit<Width>>(unit);
            } else if (row < num_rows_ && place < left) {
                *to = static_cast<Bits>(unit);
            }
        }
    }

    template<int Width> __device__ void find_units(const AttentionItem &item, uint32_t first) {
        left_ = item.num_keys > first ? item.num_keys - first : 0;
#pragma unroll
        for (int i = 0; i < Units<Width>::places; i++) {
            const uint32_t place = Units<Width>::place(i);
            columns_[i] = place < left_ ? column_of(item, first + place) : 0;
        }
    }
    template<int Width> __device__ void load_units() {
#pragma unroll
        for (int i = 0; i < Units<Width>::count; i++) {
            const uint32_t row = Units<Width>::row(i), place = Units<Width>::place(i);
            const Bits *const from = address(row) + columns_[i % Units<Width>::places];
            units_[i] = 0;
            if (row < num_rows_ && place + Width <= left_) {
                units_[i] = *reinterpret_cast<const Unit<Width> *>(from);
            } else if (row < num_rows_ && place < left_) {
                units_[i] = *from;
            }
        }
    }
    template<int Width> __device__ void put_units() const {
#pragma unroll
        for (int i = 0; i < Units<Width>::count; i++) {
            const uint32_t to = tile_ + Units<Width>::row(i) * row_bytes + Units<Width>::place(i) * bytes;
            if constexpr (Width * bytes == 4) {
                put_word(to, units_[i]);
            } else {
                asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(static_cast<uint16_t>(units_[i])) : "memory");
            }
        }
    }

    uint64_t row_ = 0;  ///< The address of row threadIdx.x % 16, if it is below num_rows_.
    uint32_t num_rows_ = 0, tile_ = 0, left_ = 0;
    uint32_t columns_[Units<1>::places], units_[Units<1>::count];
    bool in_pairs_ = false;
};

}  // namespace distile::tensor_core

#endif
