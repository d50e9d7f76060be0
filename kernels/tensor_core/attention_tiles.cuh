/** \file
 * Blocks of tokens in shared memory and in registers, for attention: copies, keys that a row does not see, and results.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ATTENTION_TILES_CUH
#define DISTILE_CUDA_TENSOR_CORE_ATTENTION_TILES_CUH

#include "kernels/tensor_core/attention_items.cuh"
#include "kernels/tensor_core/ptx.cuh"
#include "kernels/tensor_core/softmax.cuh"
#include "kernels/tensor_core/store.cuh"
#include <type_traits>

namespace distile::tensor_core {

/** A head's channels of a token in shared memory, in columns whose pieces of 16 bytes are swizzled as the tensor cores
 * of compute capability 9.0 read them. */
template<class Op> struct HeadLayout {
    static constexpr int element_bytes = sizeof(typename Op::Element);
    /** Channels that are multiplied, 32 bytes at once, with zeros behind the head's, and those that there is room for
     * in whole columns. */
    static constexpr int step_channels = 32 / element_bytes;
    static constexpr int channels = (Op::head_dim + step_channels - 1) / step_channels * step_channels;
    static constexpr int stored_channels = (Op::head_dim + 31) / 32 * 32;
    static constexpr int row_bytes = stored_channels * element_bytes;
    static constexpr int column_bytes = row_bytes % 128 == 0 ? 128 : 64;
    static constexpr int pieces = channels * element_bytes / 16, column_pieces = column_bytes / 16;

    static_assert((element_bytes == 2 || element_bytes == 4) && Op::head_dim % 8 == 0 && channels <= 256);

    /** Where a piece of a row lies in a tile of `Rows`. */
    template<int Rows> __device__ static uint32_t offset(uint32_t row, uint32_t piece) {
        const uint32_t line = row * column_bytes;
        const uint32_t swizzled = (piece % column_pieces) ^ (line / 128 % column_pieces);
        return piece / column_pieces * (Rows * column_bytes) + line + swizzled * 16;
    }
};

/** The first channel of an item's head, in its image. */
template<class Op> __device__ inline char *head_of(const Tensor &tensor, const AttentionItem &item) {
    return tensor.data + int64_t{static_cast<int32_t>(item.image) * tensor.stride_n} * 16 +
           item.head * (Op::head_dim * HeadLayout<Op>::element_bytes);
}

/** Copies tiles of `Rows` tokens with `Threads` threads; neighbouring threads copy the pieces of a row. */
template<class Op, int Rows, int Threads> class TileCopier {
    using Layout = HeadLayout<Op>;
    static constexpr int lanes = Layout::pieces % 8 == 0 ? 8 : Layout::pieces % 4 == 0 ? 4 : 2;
    static constexpr int pass_rows = Threads / lanes, passes = (Rows + pass_rows - 1) / pass_rows;
    static constexpr int thread_pieces = Layout::pieces / lanes, pass_bytes = pass_rows * Layout::column_bytes;
    static constexpr int head_pieces = Op::head_dim * Layout::element_bytes / 16;

    // The swizzle of a thread's pieces is the same in every pass.
    static_assert(pass_bytes % 1024 == 0);

public:
    /** A head of a tensor's tokens, as a thread copies it. */
    struct Source {
        const char *pieces;
        uint32_t stride;

        __device__ Source(const Tensor &tensor, const AttentionItem &item)
            : pieces(head_of<Op>(tensor, item) + thread_piece() * 16), stride(static_cast<uint32_t>(tensor.stride_w)) {
        }
    };

    __device__ TileCopier() {
#pragma unroll
        for (int i = 0; i < thread_pieces; i++) {
            offsets_[i] = Layout::template offset<Rows>(thread_row(0), thread_piece() + i * lanes);
        }
    }
    /** Looks up the tokens at `first` and behind. */
    __device__ void find(const Tokens &list, uint32_t first, uint32_t end) {
#pragma unroll
        for (int pass = 0; pass < passes; pass++) {
            // Any token does for those beyond.
            tokens_[pass] = list.at(min(first + thread_row(pass), end - 1));
        }
    }
    /** Copies those that were found. */
    __device__ void copy(uint32_t to, const Source &source) const {
        copy<true>(to, source, Rows);
    }
    /** Copies the first `count` tokens that were found, and zeros behind them. */
    __device__ void copy(uint32_t to, const Source &source, uint32_t count) const {
        if (count >= Rows) {
            copy<true>(to, source, count);
        } else {
            copy<false>(to, source, count);
        }
    }

private:
    template<bool Whole> __device__ void copy(uint32_t to, const Source &source, uint32_t count) const {
#pragma unroll
        for (int pass = 0; pass < passes; pass++) {
            const uint32_t row = thread_row(pass);
            if (Rows % pass_rows != 0 && row >= Rows) {
                continue;
            }
            const char *const from = source.pieces + uint64_t{tokens_[pass] * source.stride} * 16;
#pragma unroll
            for (int i = 0; i < thread_pieces; i++) {
                const uint32_t piece = thread_piece() + i * lanes;
                copy_or_zero(to + offsets_[i] + pass * pass_bytes, from + i * (lanes * 16),
                             (Whole || row < count) && (Op::head_dim == Layout::channels || piece < head_pieces));
            }
        }
    }
    __device__ static uint32_t thread_row(int pass) {
        return threadIdx.x % Threads / lanes + pass * pass_rows;
    }
    __device__ static uint32_t thread_piece() {
        return threadIdx.x % lanes;
    }

    uint32_t tokens_[passes], offsets_[thread_pieces];
};

/** The rows of a thread, as tensor cores leave sums: lane l has rows l / 4 and l / 4 + 8 of its warp's 16. */
__device__ inline uint32_t thread_row(int i) {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * i;
}

/** Keeps the compiler from computing a branch that is seldom taken and selecting its results. */
__device__ inline void keep_branch() {
    asm volatile("");
}

/** Scores count as so much the less for a negative scale. */
template<int Count, class Scores> __device__ inline void negate(Scores &scores) {
#pragma unroll
    for (int i = 0; i < Count; i++) {
        scores[i] = -scores[i];
    }
}

/** The last keys that the rows of a thread see. */
template<class Op> struct LastKeys {
    int32_t keys[2] = {};

    LastKeys() = default;
    template<class Items> __device__ LastKeys(const Items &items, const AttentionItem &item) {
        if constexpr (Op::causal) {
            for (int i = 0; i < 2; i++) {
                const uint32_t row = min(item.first_row + thread_row(i), item.rows.count() - 1);
                keys[i] = items.last_key(item.rows.at(row));
            }
        }
    }
    /** Takes away the scores of keys that a row does not see or that are beyond the last. */
    template<int BlockKeys, class Scores>
    __device__ void hide(Scores &scores, const AttentionItem &item, uint32_t step) const {
        const uint32_t first = step * BlockKeys, end = min(first + BlockKeys, item.num_keys);
        const uint32_t own = threadIdx.x % 4 * 2;
        if constexpr (Op::causal) {
            if (static_cast<int32_t>(item.keys.at(end - 1)) > min(keys[0], keys[1])) {
                keep_branch();
#pragma unroll
                for (int i = 0; i < BlockKeys / 2; i++) {
                    const uint32_t place = first + own + i / 4 * 8 + i % 2;
                    if (place<end &&static_cast<int32_t>(item.keys.at(place))> keys[i / 2 % 2]) {
                        scores[i] = no_score;
                    }
                }
            }
        }
        if (end - first < BlockKeys) {
            keep_branch();
#pragma unroll
            for (int i = 0; i < BlockKeys / 2; i++) {
                if (own + i / 4 * 8 + i % 2 >= end - first) {
                    scores[i] = no_score;
                }
            }
        }
    }
};

/** Multiplies each of a thread's two rows by a factor. */
template<int Count, class Sums> __device__ inline void shrink(Sums &sums, const float (&factors)[2]) {
#pragma unroll
    for (int i = 0; i < Count; i++) {
        sums[i] *= factors[i / 2 % 2];
    }
}

/** The tokens of a thread's two rows. */
struct ThreadTokens {
    static constexpr uint32_t nowhere = ~0u;
    uint32_t tokens[2] = {nowhere, nowhere};

    /** Looked up before they are needed. */
    __device__ void find(const AttentionItem &item) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t row = item.first_row + thread_row(half);
            tokens[half] = row < item.rows.count() ? item.rows.at(row) : nowhere;
        }
    }
};

/** Calls visit(first, width), of constants, for groups of 8 * width channels: 32, and what is left in 16 and 8. A group
 * takes `width` instructions; channel first + width * n + i is column n of instruction i, so neighbouring channels are
 * one vector in memory. */
template<int Channels, int First = 0, class Visit> __device__ inline void for_each_group(const Visit &visit) {
    if constexpr (First < Channels) {
        constexpr int left = Channels - First, width = left >= 32 ? 4 : left >= 16 ? 2 : 1;
        visit(std::integral_constant<int, First>{}, std::integral_constant<int, width>{});
        for_each_group<Channels, First + 8 * width>(visit);
    }
}

/** Stores the sums of a row, which are in float32 and in groups, if it is one. */
template<class Op, class Sums> __device__ inline void store_groups(char *head, bool is_in, const Sums &sums, int half) {
    const uint32_t quad = threadIdx.x % 4;
    for_each_group<Op::head_dim>([&](auto first, auto width) {
        // A lane has columns 2 * quad and the next one of each instruction.
        float own[2 * width];
#pragma unroll
        for (int i = 0; i < 2 * width; i++) {
            own[i] = sums[4 * (first / 8 + i % width) + 2 * half + i / width];
        }
        if (is_in) {
            auto *const to = reinterpret_cast<float *>(head) + first + 2 * width * quad;
            if constexpr (width == 1) {
                *reinterpret_cast<float2 *>(to) = {own[0], own[1]};
            } else {
#pragma unroll
                for (int i = 0; i < 2 * width; i += 4) {
                    *reinterpret_cast<float4 *>(to + i) = {own[i], own[i + 1], own[i + 2], own[i + 3]};
                }
            }
        }
    });
}

/** Stores the sums of a thread's two rows. */
template<class Op, class Sums> __device__ inline void store_rows(const Tensor &output, const AttentionItem &item,
                                                                 const ThreadTokens &own, const Sums &sums) {
    using Stored = Storage<typename Op::Element>;
    const uint32_t quad = threadIdx.x % 4;
    char *const head = head_of<Op>(output, item);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool is_in = own.tokens[half] != ThreadTokens::nowhere;
        char *const to = head + uint64_t{own.tokens[half] * static_cast<uint32_t>(output.stride_w)} * 16;
        if constexpr (Stored::bytes == 4) {
            store_groups<Op>(to, is_in, sums, half);
        } else if constexpr (Op::head_dim % 32 == 0) {
            // Four lanes exchange what they have of four groups of eight channels, so each stores a whole one.
#pragma unroll
            for (int j = 0; j < Op::head_dim / 8; j += 4) {
                uint32_t packed[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int at = 4 * (j + i) + 2 * half;
                    packed[i] = Stored::pack(sums[at], sums[at + 1]);
                }
                transpose_in_quad(packed);
                if (is_in) {
                    *reinterpret_cast<uint4 *>(to + 16 * (j + quad)) = {packed[0], packed[1], packed[2], packed[3]};
                }
            }
        } else {
#pragma unroll
            for (int j = 0; j < Op::head_dim / 8; j++) {
                const int at = 4 * j + 2 * half;
                if (is_in) {
                    *reinterpret_cast<uint32_t *>(to + 16 * j + 4 * quad) = Stored::pack(sums[at], sums[at + 1]);
                }
            }
        }
    }
}

}  // namespace distile::tensor_core

#endif
