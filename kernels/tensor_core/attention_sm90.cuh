/** \file
 * Attention of listed query rows over listed keys on the tensor cores of compute capability 9.0. Rows and keys are read
 * in place; scores never leave registers.
 *
 * A block computes an item of 64 rows for each of its `Groups` of four warps at a time. Four more warps copy rows,
 * keys and values to shared memory, `Stages` blocks of keys ahead. Overlapped: the products with values run beside the
 * softmax of the next scores. Ordered: the groups issue their products in turn, so that one multiplies beside the
 * softmax of another. Balanced: blocks share the keys of the last items, so that all end together.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ATTENTION_SM90_CUH
#define DISTILE_CUDA_TENSOR_CORE_ATTENTION_SM90_CUH

#include "kernels/tensor_core/attention_tiles.cuh"
#include "kernels/tensor_core/wgmma.cuh"
#include "kernels/tensor_core/work.cuh"
#include <type_traits>

namespace distile::tensor_core {

template<class Op, int Groups, int BlockKeys, int Stages, bool Overlapped, bool Ordered, bool Balanced, int Resident>
class AttentionSm90 {
    using Element = typename Op::Element;
    using Head = HeadLayout<Op>;
    using Items = AttentionItems<Op, 64 * Groups, BlockKeys>;
    using Work = std::conditional_t<Balanced, BalancedWork<RaggedItems, 3, 2>, WorkInTurn<0, 1>>;

    static constexpr int block_rows = 64 * Groups;
    static constexpr int channels = Head::stored_channels;
    static constexpr int query_bytes = block_rows * Head::row_bytes, block_bytes = BlockKeys * Head::row_bytes;
    static constexpr int multipliers = 128 * Groups;

    static_assert(BlockKeys % 16 == 0 && BlockKeys <= 256);

    struct Shared {
        uint64_t keys_filled[Stages], keys_emptied[Stages], values_filled[Stages], values_emptied[Stages];
        uint64_t queries_filled[2], queries_emptied[2];
        uint64_t published, collectable;
        uint32_t worker;
    };

public:
    static constexpr int threads = multipliers + 128;
    static constexpr int alignment = 1024;
    static constexpr int shared_bytes =
        alignment + 2 * query_bytes + 2 * Stages * block_bytes + static_cast<int>(sizeof(Shared));
    /** Blocks on a multiprocessor, and what each shares with others. */
    static constexpr int blocks = Resident;
    static constexpr int part_bytes = Balanced ? multipliers * (channels / 8 + 1) * 16 : 0;
    static_assert(shared_bytes <= 227 * 1024);

    __device__ __forceinline__ static void run(const AttentionArguments &arguments) {
        extern __shared__ char dynamic[];
        char *const queries = dynamic + (alignment - shared_address(dynamic) % alignment) % alignment;
        char *const stages = queries + 2 * query_bytes;
        auto &shared = *reinterpret_cast<Shared *>(stages + 2 * Stages * block_bytes);
        if (threadIdx.x == 0) {
            for (int i = 0; i < Stages; i++) {
                init_barrier(shared_address(&shared.keys_filled[i]), 128);
                init_barrier(shared_address(&shared.values_filled[i]), 128);
                init_barrier(shared_address(&shared.keys_emptied[i]), Groups);
                init_barrier(shared_address(&shared.values_emptied[i]), Groups);
            }
            for (int i = 0; i < 2; i++) {
                init_barrier(shared_address(&shared.queries_filled[i]), 128);
                init_barrier(shared_address(&shared.queries_emptied[i]), Groups);
            }
            init_barrier(shared_address(&shared.published), multipliers);
            init_barrier(shared_address(&shared.collectable), 1);
            publish_barriers();
        }
        __syncthreads();
        wait_for_earlier_kernels();
        start_next_kernel();
        if (is_idle(arguments)) {
            return;
        }
        const Items items(arguments);
        const Work work = [&] {
            if constexpr (Balanced) {
                return Work(items.shared(), arguments.blocks, arguments.signals, shared.worker);
            } else {
                return Work{items.count(), arguments.blocks, static_cast<int32_t>(items.steps())};
            }
        }();
        const AttentionSm90 block{arguments, items, work, queries, stages, shared};
        if (threadIdx.x >= multipliers) {
            block.copy();
        } else {
            block.multiply();
        }
    }

private:
    /** Registers of each thread when a block begins. Copying needs fewer, so multiplying can have more. */
    static constexpr int launch_registers = threads * Resident <= 256 ? 255 : 65536 / (threads * Resident) / 8 * 8;
    static constexpr int copier_registers = launch_registers <= 128 ? 32 : 40;

    const AttentionArguments &a;
    const Items &items;
    const Work &work;
    char *const queries, *const stages;
    Shared &shared;

    __device__ AttentionSm90(const AttentionArguments &arguments, const Items &given_items, const Work &given_work,
                             char *given_queries, char *given_stages, Shared &given_shared)
        : a(arguments), items(given_items), work(given_work), queries(given_queries), stages(given_stages),
          shared(given_shared) {
    }

    /** A stage or a buffer, and how often it was used before. */
    template<int Count> struct Turn {
        uint32_t at = 0, parity = 0;

        __device__ void next() {
            if (++at == Count) {
                at = 0;
                parity ^= 1;
            }
        }
    };

    /** The blocks of keys of a segment of an item. */
    struct Range {
        uint32_t begin, end;
    };
    __device__ Range range_of(const AttentionItem &item, const Segment &segment) const {
        const uint32_t steps = Items::steps_of(item.num_keys);
        if constexpr (Balanced) {
            const uint32_t length = work.length(segment.item);
            return {segment.begin * steps / length, segment.end * steps / length};
        }
        return {0, steps};
    }
    /** Whether a segment has an item's last keys. */
    __device__ bool has_end(const Segment &segment) const {
        return segment.end == static_cast<int32_t>(work.length(segment.item));
    }

    // ---- Copying ----

    __device__ void copy() const {
        if constexpr (launch_registers < 255) {
            lower_registers<copier_registers>();
        }
        const uint32_t first_stage = shared_address(stages);
        using Copier = TileCopier<Op, BlockKeys, 128>;
        Copier copier;
        Turn<Stages> turn;
        Turn<2> query_turn;
        for (typename Work::Walk walk(work); walk.has_segment(); walk.next()) {
            const Segment segment = walk.segment();
            const AttentionItem item = items.find(segment.item);
            const Range range = range_of(item, segment);
            if (range.begin == range.end) {
                await(segment);
                continue;
            }
            copier.find(item.keys, range.begin * BlockKeys, item.num_keys);
            copy_queries(item, query_turn);
            const typename Copier::Source keys(a.key, item), values(a.value, item);
#pragma unroll 1
            for (uint32_t step = range.begin; step < range.end; step++) {
                const uint32_t stage = first_stage + turn.at * (2 * block_bytes),
                               left = item.num_keys - step * BlockKeys;
                wait(shared_address(&shared.keys_emptied[turn.at]), turn.parity ^ 1);
                copier.copy(stage, keys, left);
                arrive_after_copies(shared_address(&shared.keys_filled[turn.at]));
                wait(shared_address(&shared.values_emptied[turn.at]), turn.parity ^ 1);
                copier.copy(stage + block_bytes, values, left);
                arrive_after_copies(shared_address(&shared.values_filled[turn.at]));
                if (step + 1 < range.end) {
                    copier.find(item.keys, (step + 1) * BlockKeys, item.num_keys);
                }
                turn.next();
            }
            await(segment);
        }
        wait_for_copies();
    }

    __device__ void copy_queries(const AttentionItem &item, Turn<2> &turn) const {
        const uint32_t buffer = shared_address(queries) + turn.at * query_bytes;
        wait(shared_address(&shared.queries_emptied[turn.at]), turn.parity ^ 1);
        using Copier = TileCopier<Op, block_rows, 128>;
        Copier copier;
        copier.find(item.rows, item.first_row, item.rows.count());
        // Rows beyond the last are not stored.
        copier.copy(buffer, typename Copier::Source(a.query, item));
        arrive_after_copies(shared_address(&shared.queries_filled[turn.at]));
        turn.next();
    }

    // ---- Multiplying ----

    __device__ static uint32_t group() {
        return threadIdx.x / 128;
    }
    __device__ static void empty(uint64_t &barrier) {
        if (threadIdx.x % 128 == 0) {
            arrive(shared_address(&barrier));
        }
    }
    // Groups issue their products in the order of their numbers.
    __device__ static void take_turn() {
        if constexpr (Ordered && Groups > 1) {
            asm volatile("bar.sync %0, 256;" ::"r"(2 + group()) : "memory");
        }
    }
    __device__ static void pass_turn() {
        if constexpr (Ordered && Groups > 1) {
            asm volatile("bar.arrive %0, 256;" ::"r"(2 + (group() + 1) % Groups) : "memory");
        }
    }

    /** The products of a group: its queries with a block of keys, and the probabilities with a block of values. */
    struct Products {
        static constexpr int line_bytes = Head::column_bytes, line_pieces = line_bytes / 16, steps = line_bytes / 32;

        // The columns of a tile lie behind each other (HeadLayout).
        __device__ __forceinline__ explicit Products(const AttentionSm90 &given)
            : first_stage(keep_value(shared_address(given.stages))),
              shared_queries(shared_address(given.queries) + group() * (64 * line_bytes), line_bytes),
              shared_keys(first_stage, line_bytes),
              shared_values(first_stage + block_bytes, line_bytes, BlockKeys * line_bytes) {
        }

        __device__ __forceinline__ void issue_scores(uint32_t at, const Turn<2> &query_turn) {
            const uint32_t stage = uniform(at), buffer = uniform(query_turn.at);
            fence_registers(scores);
            begin_products();
#pragma unroll
            for (int k = 0; k < Head::channels / 16; k++) {
                const int column = k / steps * line_pieces, within = k % steps * 2;
                multiply_add(Element{}, scores,
                             shared_queries.at(buffer * (query_bytes / 16) + column * block_rows + within),
                             shared_keys.at(stage * (2 * block_bytes / 16) + column * BlockKeys + within), k > 0);
            }
            commit_products();
        }
        __device__ __forceinline__ void issue_values(uint32_t at) {
            const uint32_t stage = uniform(at);
            fence_registers(sums);
            fence_registers(weights);
            begin_products();
#pragma unroll
            for (int k = 0; k < BlockKeys / 16; k++) {
                multiply_add(Element{}, sums, weights[k],
                             shared_values.at(stage * (2 * block_bytes / 16) + k * (16 * line_pieces)), true);
            }
            commit_products();
        }
        __device__ __forceinline__ void set_weights() {
#pragma unroll
            for (int i = 0; i < BlockKeys / 4; i++) {
                weights[i / 4][i % 4] = Storage<Element>::pack(scores[2 * i], scores[2 * i + 1]);
            }
        }

        const uint32_t first_stage;
        const SharedMatrix shared_queries, shared_keys, shared_values;
        float scores[BlockKeys / 2], sums[channels / 2];
        uint32_t weights[BlockKeys / 16][4];
    };

    __device__ __forceinline__ void finish_scores(float (&scores)[BlockKeys / 2], const LastKeys<Op> &last_keys,
                                                  const AttentionItem &item, uint32_t step) const {
        fence_registers(scores);
        if (a.scale < 0) {
            keep_branch();
            negate<BlockKeys / 2>(scores);
        }
        last_keys.template hide<BlockKeys>(scores, item, step);
    }

    /** Multiplies with the values of a block of keys beside the scores of the next. */
    __device__ __forceinline__ void add_overlapped(Products &products, Turn<Stages> &turn, const Turn<2> &query_turn,
                                                   const AttentionItem &item, const Range &range, Softmax &softmax,
                                                   float scale, bool &publishes, ThreadTokens &thread_tokens) const {
        const LastKeys<Op> last_keys(items, item);
        float factors[2];
        wait(shared_address(&shared.queries_filled[query_turn.at]), query_turn.parity);
        wait(shared_address(&shared.keys_filled[turn.at]), turn.parity);
        products.issue_scores(turn.at, query_turn);
        wait_for_products<0>();
        empty(shared.keys_emptied[turn.at]);
        finish_scores(products.scores, last_keys, item, range.begin);
        softmax.template add<BlockKeys / 2>(products.scores, scale, factors);
        products.set_weights();
        signal(publishes);
#pragma unroll 1
        for (uint32_t step = range.begin + 1; step < range.end; step++) {
            const Turn<Stages> before = turn;
            turn.next();
            wait(shared_address(&shared.keys_filled[turn.at]), turn.parity);
            take_turn();
            products.issue_scores(turn.at, query_turn);
            wait(shared_address(&shared.values_filled[before.at]), before.parity);
            products.issue_values(before.at);
            pass_turn();
            wait_for_products<1>();
            empty(shared.keys_emptied[turn.at]);
            finish_scores(products.scores, last_keys, item, step);
            const bool changed = softmax.template add<BlockKeys / 2>(products.scores, scale, factors);
            softmax.complete();
            wait_for_products<0>();
            fence_registers(products.sums);
            fence_registers(products.weights);
            empty(shared.values_emptied[before.at]);
            if (changed) {
                keep_branch();
                shrink<channels / 2>(products.sums, factors);
            }
            products.set_weights();
        }
        empty(shared.queries_emptied[query_turn.at]);
        wait(shared_address(&shared.values_filled[turn.at]), turn.parity);
        products.issue_values(turn.at);
        thread_tokens.find(item);
        wait_for_products<0>();
        fence_registers(products.sums);
        empty(shared.values_emptied[turn.at]);
        turn.next();
    }

    /** Multiplies with the keys of a block and then with its values. */
    __device__ __forceinline__ void add_in_turn(Products &products, Turn<Stages> &turn, const Turn<2> &query_turn,
                                                const AttentionItem &item, const Range &range, Softmax &softmax,
                                                float scale, bool &publishes, ThreadTokens &thread_tokens) const {
        const LastKeys<Op> last_keys(items, item);
        float factors[2];
        wait(shared_address(&shared.queries_filled[query_turn.at]), query_turn.parity);
        signal(publishes);
#pragma unroll 1
        for (uint32_t step = range.begin; step < range.end; step++) {
            wait(shared_address(&shared.keys_filled[turn.at]), turn.parity);
            take_turn();
            products.issue_scores(turn.at, query_turn);
            wait_for_products<0>();
            pass_turn();
            empty(shared.keys_emptied[turn.at]);
            finish_scores(products.scores, last_keys, item, step);
            if (softmax.template add<BlockKeys / 2>(products.scores, scale, factors)) {
                keep_branch();
                shrink<channels / 2>(products.sums, factors);
            }
            products.set_weights();
            wait(shared_address(&shared.values_filled[turn.at]), turn.parity);
            products.issue_values(turn.at);
            wait_for_products<0>();
            fence_registers(products.sums);
            fence_registers(products.weights);
            empty(shared.values_emptied[turn.at]);
            turn.next();
        }
        empty(shared.queries_emptied[query_turn.at]);
        thread_tokens.find(item);
    }

    __device__ void multiply() const {
        if constexpr (launch_registers < 255) {
            constexpr int left = (launch_registers * (Groups + 1) - copier_registers) / Groups / 8 * 8;
            raise_registers<(left < 240 ? left : 240)>();
        }
        Products products(*this);
        if (group() == Groups - 1) {
            pass_turn();
        }
        const float scale = fabsf(a.scale) * log2_e;
        Turn<Stages> turn;
        Turn<2> query_turn;
        bool publishes = false;
        for (typename Work::Walk walk(work); walk.has_segment(); walk.next()) {
            const Segment segment = walk.segment();
            const AttentionItem item = items.find(segment.item);
            const Range range = range_of(item, segment);
            Softmax softmax;
            ThreadTokens thread_tokens;
#pragma unroll
            for (float &sum : products.sums) {
                sum = 0;
            }
            const bool has_rows = item.first_row + group() * 64 < item.rows.count();
            if (range.begin == range.end) {
                thread_tokens.find(item);
            } else if (!has_rows) {
                skip(range, turn, query_turn);
            } else {
                if constexpr (Overlapped) {
                    add_overlapped(products, turn, query_turn, item, range, softmax, scale, publishes, thread_tokens);
                } else {
                    add_in_turn(products, turn, query_turn, item, range, softmax, scale, publishes, thread_tokens);
                }
                query_turn.next();
            }
            if constexpr (Balanced) {
                if (!has_end(segment)) {
                    publish(products.sums, softmax);
                    publishes = threadIdx.x == 0;
                    continue;
                }
                if (segment.begin > 0) {
                    collect(products.sums, softmax, segment.item, scale);
                }
            }
            float factors[2];
            softmax.finish(factors);
            shrink<channels / 2>(products.sums, factors);
            store_rows<Op>(a.output, item, thread_tokens, products.sums);
        }
        signal(publishes);
        if constexpr (Balanced) {
            if (threadIdx.x == 0) {
                work.leave(a.signals);
            }
        }
    }

    /** Lets the others have what this group, which has no rows, does not need. */
    __device__ void skip(const Range &range, Turn<Stages> &turn, Turn<2> &query_turn) const {
        wait(shared_address(&shared.queries_filled[query_turn.at]), query_turn.parity);
        for (uint32_t step = range.begin; step < range.end; step++) {
            if (step > range.begin || !Overlapped) {
                take_turn();
                pass_turn();
            }
            wait(shared_address(&shared.keys_filled[turn.at]), turn.parity);
            empty(shared.keys_emptied[turn.at]);
            wait(shared_address(&shared.values_filled[turn.at]), turn.parity);
            empty(shared.values_emptied[turn.at]);
            turn.next();
        }
        empty(shared.queries_emptied[query_turn.at]);
        query_turn.next();
    }

    // ---- Sums of shared items ----

    /** Called by the threads that copy when all keys of a segment are on their way: waits for the sums of others, so
     * that no group that multiplies does. A block collects those of one item at most, the last. */
    __device__ void await(const Segment &segment) const {
        if constexpr (Balanced) {
            if (threadIdx.x == multipliers && segment.begin > 0 && has_end(segment)) {
                uint32_t other = work.worker();
                do {
                    other--;
                    wait_for_signal(a.signals + other);
                    a.signals[other] = 0;
                } while (!work.has_begin(other, segment.item));
                arrive(shared_address(&shared.collectable));
            }
        }
    }
    /** Tells the others that the sums of this block are there, once they are. A block publishes those of one item at
     * most, the first, and does so later, when nothing waits for the memory any more. */
    __device__ void signal(bool &publishes) const {
        if constexpr (Balanced) {
            if (publishes) {
                wait(shared_address(&shared.published), 0);
                __threadfence();
                set_signal(a.signals + work.worker());
                publishes = false;
            }
        }
    }

    static constexpr int part_vectors = channels / 8 + 1;
    __device__ float4 *part(uint32_t worker) const {
        return reinterpret_cast<float4 *>(a.parts) + uint64_t{worker} * (part_vectors * multipliers) + threadIdx.x;
    }
    template<class Sums> __device__ void publish(const Sums &sums, const Softmax &softmax) const {
        float4 *const to = part(work.worker());
#pragma unroll
        for (int j = 0; j < channels / 8; j++) {
            __stcg(to + j * multipliers, make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]));
        }
        __stcg(to + (part_vectors - 1) * multipliers,
               make_float4(softmax.max[0], softmax.max[1], softmax.sum[0], softmax.sum[1]));
        arrive(shared_address(&shared.published));
    }
    template<class Sums> __device__ void collect(Sums &sums, Softmax &softmax, uint32_t item, float scale) const {
        wait(shared_address(&shared.collectable), 0);
        uint32_t other = work.worker();
        do {
            other--;
            const float4 *const from = part(other);
            float4 added[part_vectors];
#pragma unroll
            for (int j = 0; j < part_vectors; j++) {
                added[j] = __ldcg(from + j * multipliers);
            }
            const float4 &state = added[part_vectors - 1];
            const Softmax others{{state.x, state.y}, {state.z, state.w}};
            float factors[2], other_factors[2];
            softmax.unite(others, scale, factors, other_factors);
#pragma unroll
            for (int j = 0; j < channels / 8; j++) {
                sums[4 * j] = sums[4 * j] * factors[0] + added[j].x * other_factors[0];
                sums[4 * j + 1] = sums[4 * j + 1] * factors[0] + added[j].y * other_factors[0];
                sums[4 * j + 2] = sums[4 * j + 2] * factors[1] + added[j].z * other_factors[1];
                sums[4 * j + 3] = sums[4 * j + 3] * factors[1] + added[j].w * other_factors[1];
            }
        } while (!work.has_begin(other, item));
    }
};

}  // namespace distile::tensor_core

#endif
