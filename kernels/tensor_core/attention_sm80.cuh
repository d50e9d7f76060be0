/** \file
 * Attention of listed query rows over listed keys on the tensor cores of compute capability 8.0 and later. Rows and
 * keys are read in place; scores never leave registers.
 *
 * A block computes an item of BlockRows at a time, WarpRows for each warp. All threads copy keys and values to shared
 * memory, Stages - 1 blocks of keys ahead, and all multiply. Blocks stay and take further items.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ATTENTION_SM80_CUH
#define DISTILE_CUDA_TENSOR_CORE_ATTENTION_SM80_CUH

#include "kernels/tensor_core/attention_factors.cuh"
#include "kernels/tensor_core/work.cuh"

namespace distile::tensor_core {

template<class Op, int BlockRows, int BlockKeys, int Stages, int WarpRows, int Resident> class AttentionSm80 {
    using Element = typename Op::Element;
    using Items = AttentionItems<Op, BlockRows, BlockKeys>;
    using Work = WorkInTurn<0, 1>;
    using Layout = HeadLayout<Op>;

    static constexpr int channels = Layout::channels, pieces = Layout::pieces;
    static constexpr int parts = WarpRows / 16, part_rows = BlockRows / parts;
    static constexpr int query_bytes = BlockRows * Layout::row_bytes, block_bytes = BlockKeys * Layout::row_bytes;

    static_assert(WarpRows % 16 == 0 && BlockRows % WarpRows == 0 && BlockKeys % 16 == 0);

public:
    static constexpr int threads = 2 * part_rows;
    static constexpr int shared_bytes = query_bytes > 2 * Stages *block_bytes ? query_bytes : 2 * Stages *block_bytes;
    static constexpr int blocks = Resident, part_bytes = 0;

    __device__ __forceinline__ static void run(const AttentionArguments &arguments) {
        extern __shared__ __align__(128) char shared[];
        wait_for_earlier_kernels();
        if (is_idle(arguments)) {
            return;
        }
        const Items items(arguments);
        const Work work{items.count(), arguments.blocks, static_cast<int32_t>(items.steps())};
        const AttentionSm80 block{arguments, items, shared_address(shared)};
        for (typename Work::Walk walk(work); walk.has_segment(); walk.next()) {
            block.compute(items.find(walk.segment().item));
        }
    }

private:
    const AttentionArguments &a;
    const Items &items;
    const uint32_t memory;

    __device__ AttentionSm80(const AttentionArguments &arguments, const Items &given_items, uint32_t given_memory)
        : a(arguments), items(given_items), memory(given_memory) {
    }

    /** The blocks of keys that are copied. */
    struct Copies {
        using Copier = TileCopier<Op, BlockKeys, threads>;
        typename Copier::Source keys, values;
        Copier copier;
        uint32_t step = 0;
    };
    __device__ uint32_t stage_of(uint32_t step) const {
        return memory + step % Stages * (2 * block_bytes);
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
        uint32_t query[parts][pieces / 2][4];
        load_queries<Op, BlockRows>(query, a.query, item, memory);
        Copies copies{{a.key, item}, {a.value, item}, {}};
#pragma unroll
        for (int i = 0; i < Stages - 1; i++) {
            copy_step(copies, item);
        }

        LastKeys<Op> last_keys[parts];
#pragma unroll
        for (int part = 0; part < parts; part++) {
            last_keys[part] = LastKeys<Op>(items, part_of(item, part, part_rows));
        }
        Softmax softmax[parts];
        float sums[parts][channels / 8][4] = {};
        const float scale = fabsf(a.scale) * log2_e;
        const uint32_t steps = Items::steps_of(item.num_keys);
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(Stages - 2) : "memory");
            __syncthreads();
            copy_step(copies, item);
            const uint32_t keys = stage_of(step), values = keys + block_bytes;
            float scores[parts][BlockKeys / 8][4] = {};
            add_scores<Op, BlockKeys>(scores, query, keys);
#pragma unroll
            for (int part = 0; part < parts; part++) {
                auto &flat = *reinterpret_cast<float(*)[BlockKeys / 2]>(scores[part]);
                if (a.scale < 0) {
                    keep_branch();
                    negate<BlockKeys / 2>(flat);
                }
                last_keys[part].template hide<BlockKeys>(flat, item, step);
                float factors[2];
                if (softmax[part].template add<BlockKeys / 2>(flat, scale, factors)) {
                    shrink<channels / 2>(*reinterpret_cast<float(*)[channels / 2]>(sums[part]), factors);
                }
            }
            add_values<Op, BlockKeys>(sums, scores, values);
        }
#pragma unroll
        for (int part = 0; part < parts; part++) {
            auto &flat = *reinterpret_cast<float(*)[channels / 2]>(sums[part]);
            float factors[2];
            softmax[part].finish(factors);
            shrink<channels / 2>(flat, factors);
            ThreadTokens thread_tokens;
            thread_tokens.find(part_of(item, part, part_rows));
            store_rows<Op>(a.output, part_of(item, part, part_rows), thread_tokens, flat);
        }
        wait_for_copies();
    }
};

}  // namespace distile::tensor_core

#endif
