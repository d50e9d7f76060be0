/** \file
 * Attention of listed query rows over listed keys on the tensor cores of compute capability 8.0 and later. Rows and
 * keys are read in place; scores never leave registers.
 *
 * A block computes an item of BlockRows at a time, 16 for each warp. All threads copy keys and values to shared memory,
 * Stages - 1 blocks of keys ahead, and all multiply. Blocks stay and take further items.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ATTENTION_SM80_CUH
#define DISTILE_CUDA_TENSOR_CORE_ATTENTION_SM80_CUH

#include "attention_factors.cuh"
#include "work.cuh"

namespace distile::tensor_core {

template<class Op, int BlockRows, int BlockKeys, int Stages, int Resident> class AttentionSm80 {
    using Element = typename Op::Element;
    using Items = AttentionItems<Op, BlockRows, BlockKeys>;
    using Work = WorkInTurn<0, 1>;
    using Layout = HeadLayout<Op>;

    static constexpr int channels = Layout::channels, pieces = Layout::pieces;
    static constexpr int query_bytes = BlockRows * Layout::row_bytes, block_bytes = BlockKeys * Layout::row_bytes;

    static_assert(BlockRows % 16 == 0 && BlockKeys % 16 == 0);

public:
    static constexpr int threads = 2 * BlockRows;
    static constexpr int shared_bytes = query_bytes + 2 * Stages * block_bytes;
    static constexpr int blocks = Resident, part_bytes = 0;

    __device__ __forceinline__ static void run(const AttentionArguments &arguments) {
        extern __shared__ __align__(128) char queries[];
        wait_for_earlier_kernels();
        if (is_idle(arguments)) {
            return;
        }
        const Items items(arguments);
        const Work work{items.count(), arguments.blocks, static_cast<int32_t>(items.steps())};
        const AttentionSm80 block{arguments, items, shared_address(queries)};
        for (typename Work::Walk walk(work); walk.has_segment(); walk.next()) {
            block.compute(items.find(walk.segment().item));
        }
    }

private:
    const AttentionArguments &a;
    const Items &items;
    const uint32_t queries;

    __device__ AttentionSm80(const AttentionArguments &arguments, const Items &given_items, uint32_t given_queries)
        : a(arguments), items(given_items), queries(given_queries) {
    }

    /** The blocks of keys that are copied. */
    struct Copies {
        using Copier = TileCopier<Op, BlockKeys, threads>;
        typename Copier::Source keys, values;
        Copier copier;
        uint32_t step = 0;
    };
    __device__ uint32_t stage_of(uint32_t step) const {
        return queries + query_bytes + step % Stages * (2 * block_bytes);
    }
    __device__ void copy_step(Copies &copies, const AttentionItem &item) const {
        const uint32_t first = copies.step * BlockKeys;
        if (first < item.num_keys) {
            const uint32_t stage = stage_of(copies.step), left = item.num_keys - first;
            copies.copier.find(item.keys, first, item.num_keys);
            copies.copier.copy(stage, copies.keys, left);
            copies.copier.copy(stage + block_bytes, copies.values, left);
        }
        copies.step++;
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    __device__ void compute(const AttentionItem &item) const {
        // What is there is still read for the item before.
        __syncthreads();
        using RowCopier = TileCopier<Op, BlockRows, threads>;
        RowCopier rows;
        rows.find(item.rows, item.first_row, item.rows.count());
        rows.copy(queries, typename RowCopier::Source(a.query, item), item.rows.count() - item.first_row);
        Copies copies{{a.key, item}, {a.value, item}, {}};
#pragma unroll
        for (int i = 0; i < Stages - 1; i++) {
            copy_step(copies, item);
        }
        // Lanes name rows of four matrices: of queries two of rows below each other, then two of the next 16 bytes; of
        // keys two of 16 bytes beside each other, then two of the next rows.
        const uint32_t lane = threadIdx.x % 32;
        const uint32_t query_row = threadIdx.x / 32 * 16 + lane % 16, query_piece = lane / 16;
        const uint32_t key_row = lane / 16 * 8 + lane % 8, key_piece = lane / 8 % 2;

        const LastKeys<Op> last_keys(items, item);
        Softmax softmax;
        float sums[channels / 8][4] = {};
        uint32_t query[pieces / 2][4];
        const float scale = fabsf(a.scale) * log2_e;
        const uint32_t steps = Items::steps_of(item.num_keys);
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(Stages - 2) : "memory");
            __syncthreads();
            copy_step(copies, item);
            const uint32_t keys = stage_of(step), values = keys + block_bytes;
            if (step == 0) {
#pragma unroll
                for (int k = 0; k < pieces / 2; k++) {
                    load_matrices(query[k],
                                  queries + Layout::template offset<BlockRows>(query_row, 2 * k + query_piece));
                    round_factors<Element>(query[k]);
                }
            }
            float scores[BlockKeys / 8][4] = {};
#pragma unroll
            for (int k = 0; k < pieces / 2; k++) {
#pragma unroll
                for (int n = 0; n < BlockKeys / 16; n++) {
                    uint32_t key[4];
                    load_matrices(key, keys + Layout::template offset<BlockKeys>(16 * n + key_row, 2 * k + key_piece));
                    round_factors<Element>(key);
                    multiply_add(Element{}, scores[2 * n], query[k], key);
                    multiply_add(Element{}, scores[2 * n + 1], query[k], key + 2);
                }
            }
            auto &flat = *reinterpret_cast<float(*)[BlockKeys / 2]>(scores);
            auto &flat_sums = *reinterpret_cast<float(*)[channels / 2]>(sums);
            if (a.scale < 0) {
                keep_branch();
                negate<BlockKeys / 2>(flat);
            }
            last_keys.template hide<BlockKeys>(flat, item, step);
            float factors[2];
            if (softmax.template add<BlockKeys / 2>(flat, scale, factors)) {
                shrink<channels / 2>(flat_sums, factors);
            }
            add_values<Op, BlockKeys>(sums, flat, values);
        }
        float factors[2];
        softmax.finish(factors);
        auto &flat_sums = *reinterpret_cast<float(*)[channels / 2]>(sums);
        shrink<channels / 2>(flat_sums, factors);
        OwnTokens own_tokens;
        own_tokens.find(item);
        store_rows<Op>(a.output, item, own_tokens, flat_sums);
        wait_for_copies();
    }
};

}  // namespace distile::tensor_core

#endif
