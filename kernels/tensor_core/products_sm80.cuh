/** \file
 * The products of attention alone, on the tensor cores of compute capability 8.0 and later: scores of listed query rows
 * and listed keys, or their probabilities, and values of listed rows by their probabilities of listed keys. Rows and
 * keys are read and written in place.
 *
 * Blocks take items as those of attention do (attention_sm80.cuh). All threads copy keys or values to shared memory,
 * Stages - 1 blocks of keys ahead, and all multiply. Scores go through shared memory, so that neighbouring threads load
 * and store neighbouring ones.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_PRODUCTS_SM80_CUH
#define DISTILE_CUDA_TENSOR_CORE_PRODUCTS_SM80_CUH

#include "kernels/tensor_core/score_rows.cuh"
#include "kernels/tensor_core/work.cuh"

namespace distile::tensor_core {

/** The keys or the values of an item on their way through shared memory, in blocks, and that several times. Functions
 * are called by all threads. */
template<class Op, int BlockKeys, int Stages, int Threads> class TokenBlocks {
    using Copier = TileCopier<Op, BlockKeys, Threads>;

public:
    static constexpr int block_bytes = BlockKeys * HeadLayout<Op>::row_bytes;

    /** Begins the first copies. */
    __device__ TokenBlocks(const Tensor &tokens, const AttentionItem &item, uint32_t memory, uint32_t passes)
        : item_(item), source_(tokens, item), memory_(memory), steps_((item.num_keys + BlockKeys - 1) / BlockKeys),
          left_(passes * steps_) {
#pragma unroll
        for (int i = 0; i < Stages - 1; i++) {
            copy();
        }
    }
    /** Waits for the next block, which stays until the call after this, and begins another copy. Returns its place. */
    __device__ uint32_t next() {
        asm volatile("cp.async.wait_group %0;" ::"n"(Stages - 2) : "memory");
        __syncthreads();
        copy();
        return stage_of(taken_++);
    }

private:
    __device__ uint32_t stage_of(uint32_t number) const {
        return memory_ + number % Stages * block_bytes;
    }
    __device__ void copy() {
        if (left_ > 0) {
            const uint32_t first = step_ * BlockKeys;
            copier_.find(item_.keys, first, item_.num_keys);
            copier_.copy(stage_of(copied_), source_, item_.num_keys - first);
            step_ = step_ + 1 < steps_ ? step_ + 1 : 0;
            copied_++;
            left_--;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    const AttentionItem &item_;
    typename Copier::Source source_;
    Copier copier_;
    uint32_t memory_, steps_, left_, step_ = 0, copied_ = 0, taken_ = 0;
};

/** Takes items in turn, of which `block` computes each. */
template<class Items, class Block>
__device__ __forceinline__ void take_items(const AttentionArguments &arguments, const Block &block) {
    using Work = WorkInTurn<0, 1>;
    const Items items(arguments);
    const Work work{items.count(), arguments.blocks, static_cast<int32_t>(items.steps())};
    for (typename Work::Walk walk(work); walk.has_segment(); walk.next()) {
        block.compute(items.find(walk.segment().item));
    }
}

/** With a softmax, a block computes its scores twice: for their greatest and the sum, and to store probabilities. */
template<class Op, int BlockRows, int BlockKeys, int Stages, int WarpRows, int Resident> class ScoresSm80 {
    static constexpr int parts = WarpRows / 16, part_rows = BlockRows / parts;
    using Layout = HeadLayout<Op>;
    using Items = AttentionItems<Op, BlockRows, BlockKeys>;
    using Rows = ScoreRows<Op, BlockKeys>;
    using Keys = TokenBlocks<Op, BlockKeys, Stages, 2 * part_rows>;

    static constexpr int query_bytes = BlockRows * Layout::row_bytes, key_bytes = Stages * Keys::block_bytes;
    static constexpr int loaded_bytes = query_bytes > key_bytes ? query_bytes : key_bytes;

    static_assert(WarpRows % 16 == 0 && BlockRows % WarpRows == 0 && BlockKeys % 16 == 0);

public:
    static constexpr int threads = 2 * part_rows;
    static constexpr int shared_bytes = loaded_bytes + BlockRows / 16 * Rows::tile_bytes;
    static constexpr int blocks = Resident, part_bytes = 0;

    __device__ __forceinline__ static void run(const AttentionArguments &arguments) {
        extern __shared__ __align__(128) char shared[];
        wait_for_earlier_kernels();
        if (!is_idle(arguments)) {
            take_items<Items>(arguments, ScoresSm80{arguments, shared_address(shared)});
        }
    }
    __device__ __forceinline__ void compute(const AttentionItem &item) const {
        if (item.num_keys == 0) {
            return;
        }
        uint32_t query[parts][Layout::pieces / 2][4];
        load_queries<Op, BlockRows>(query, a.query, item, memory);
        Rows rows[parts];
#pragma unroll
        for (int part = 0; part < parts; part++) {
            const uint32_t tile = part * (part_rows / 16) + threadIdx.x / 32;
            rows[part] = {a.scores, part_of(item, part, part_rows), memory + loaded_bytes + tile * Rows::tile_bytes};
        }
        const uint32_t steps = Items::steps_of(item.num_keys);
        Keys keys(a.key, item, memory, Op::softmax ? 2 : 1);
        const float scale = fabsf(a.scale) * log2_e;
        Softmax softmax[parts];
        float factors[parts][2];
        if constexpr (Op::softmax) {
#pragma unroll 1
            for (uint32_t step = 0; step < steps; step++) {
                float scores[parts][BlockKeys / 8][4] = {};
                multiply(scores, query, keys.next());
#pragma unroll
                for (int part = 0; part < parts; part++) {
                    auto &flat = flatten(scores[part]);
                    float unused[2];
                    LastKeys<Op>().template hide<BlockKeys>(flat, item, step);
                    softmax[part].template add<BlockKeys / 2>(flat, scale, unused);
                }
            }
#pragma unroll
            for (int part = 0; part < parts; part++) {
                softmax[part].finish(factors[part]);
            }
        }
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            float scores[parts][BlockKeys / 8][4] = {};
            multiply(scores, query, keys.next());
#pragma unroll
            for (int part = 0; part < parts; part++) {
                auto &flat = flatten(scores[part]);
                if constexpr (Op::softmax) {
                    softmax[part].template weigh<BlockKeys / 2>(flat, scale, factors[part]);
                } else {
#pragma unroll
                    for (float &score : flat) {
                        score *= a.scale;
                    }
                }
                rows[part].put(scores[part]);
                rows[part].store(item, step * BlockKeys);
            }
        }
        wait_for_copies();
    }

private:
    using Flat = float[BlockKeys / 2];

    const AttentionArguments &a;
    const uint32_t memory;

    __device__ ScoresSm80(const AttentionArguments &arguments, uint32_t given_memory)
        : a(arguments), memory(given_memory) {
    }
    __device__ static Flat &flatten(float (&scores)[BlockKeys / 8][4]) {
        return *reinterpret_cast<Flat *>(scores);
    }
    template<int K> __device__ void multiply(float (&scores)[parts][BlockKeys / 8][4],
                                             const uint32_t (&query)[parts][K][4], uint32_t keys) const {
        add_scores<Op, BlockKeys>(scores, query, keys);
        if (Op::softmax && a.scale < 0) {
            keep_branch();
#pragma unroll
            for (int part = 0; part < parts; part++) {
                negate<BlockKeys / 2>(flatten(scores[part]));
            }
        }
    }
};

template<class Op, int BlockRows, int BlockKeys, int Stages, int WarpRows, int Resident> class ValuesSm80 {
    static constexpr int parts = WarpRows / 16, part_rows = BlockRows / parts;
    using Layout = HeadLayout<Op>;
    using Items = AttentionItems<Op, BlockRows, BlockKeys>;
    using Rows = ScoreRows<Op, BlockKeys>;
    using Values = TokenBlocks<Op, BlockKeys, Stages, 2 * part_rows>;

    static constexpr int value_bytes = Stages * Values::block_bytes;

    static_assert(WarpRows % 16 == 0 && BlockRows % WarpRows == 0 && BlockKeys % 16 == 0);

public:
    static constexpr int threads = 2 * part_rows;
    static constexpr int shared_bytes = value_bytes + BlockRows / 16 * Rows::tile_bytes;
    static constexpr int blocks = Resident, part_bytes = 0;

    __device__ __forceinline__ static void run(const AttentionArguments &arguments) {
        extern __shared__ __align__(128) char shared[];
        wait_for_earlier_kernels();
        if (!is_idle(arguments)) {
            take_items<Items>(arguments, ValuesSm80{arguments, shared_address(shared)});
        }
    }
    __device__ __forceinline__ void compute(const AttentionItem &item) const {
        // What is in shared memory is still read for the item before.
        __syncthreads();
        Values values(a.value, item, memory, 1);
        Rows rows[parts];
#pragma unroll
        for (int part = 0; part < parts; part++) {
            const uint32_t tile = part * (part_rows / 16) + threadIdx.x / 32;
            rows[part] = {a.scores, part_of(item, part, part_rows), memory + value_bytes + tile * Rows::tile_bytes};
            rows[part].find(item, 0);
            rows[part].load();
            rows[part].find(item, BlockKeys);
        }
        float sums[parts][Layout::channels / 8][4] = {};
        const uint32_t steps = Items::steps_of(item.num_keys);
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            const uint32_t block = values.next();
#pragma unroll
            for (int part = 0; part < parts; part++) {
                // Probabilities are loaded a block ahead, and their places are looked up two ahead.
                rows[part].put();
                rows[part].load();
                rows[part].find(item, (step + 2) * BlockKeys);
            }
            const auto take = [&](int k, uint32_t(&weights)[parts][4]) {
#pragma unroll
                for (int part = 0; part < parts; part++) {
                    rows[part].take(k, weights[part]);
                }
            };
            add_weighted<Op, BlockKeys>(sums, take, block);
        }
#pragma unroll
        for (int part = 0; part < parts; part++) {
            const AttentionItem own = part_of(item, part, part_rows);
            ThreadTokens thread_tokens;
            thread_tokens.find(own);
            store_rows<Op>(a.output, own, thread_tokens, *reinterpret_cast<float(*)[Layout::channels / 2]>(sums[part]));
        }
        wait_for_copies();
    }

private:
    const AttentionArguments &a;
    const uint32_t memory;

    __device__ ValuesSm80(const AttentionArguments &arguments, uint32_t given_memory)
        : a(arguments), memory(given_memory) {
    }
};

}  // namespace distile::tensor_core

#endif
