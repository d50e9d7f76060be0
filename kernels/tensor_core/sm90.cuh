/** \file
 * A masked convolution as a matrix product on the tensor cores of compute capability 9.0. Rows are the pixels of active
 * tiles, columns the output channels; the reduction goes over kernel positions and input channels.
 *
 * A block computes an item of BlockPixels x BlockChannels at a time. Its last four warps copy rows or boxes of the
 * input and the packed weights to shared memory, `Stages` steps of 128 bytes ahead; the others multiply: one group of
 * four warps, or two that have half the rows or, of 64 rows, half the channels. Blocks stay and take further items
 * (work.cuh). With Splits > 1, that many neighbouring blocks of a cluster share every reduction. If the work is
 * Balanced, blocks share the reductions of the last items, so that all end together.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_SM90_CUH
#define DISTILE_CUDA_TENSOR_CORE_SM90_CUH

#include "kernels/tensor_core/boxes.cuh"
#include "kernels/tensor_core/columns.h"
#include "kernels/tensor_core/sums.cuh"
#include "kernels/tensor_core/wgmma.cuh"
#include "kernels/tensor_core/work.cuh"
#include <type_traits>

namespace distile::tensor_core {

template<class Op, int BlockPixels, int BlockChannels, int Stages, int Splits, bool Balanced> class Sm90 {
    using Element = typename Op::Element;
    using Sum = SumOf<Op>;
    using Results = Epilogue<Op>;
    using Reduction = ReductionPlace<Op>;

    static constexpr int row_groups = BlockPixels >= 128 ? 2 : 1;
    static constexpr int channel_groups = BlockPixels == 64 && BlockChannels > 128 ? 2 : 1;
    static constexpr int groups = row_groups * channel_groups, multipliers = 128 * groups;
    static constexpr int group_rows = 64 * row_groups, repeats = BlockPixels / group_rows;
    static constexpr int group_channels = BlockChannels / channel_groups;
    using ThreadSums = Fragment<row_groups, group_channels>;
    static constexpr int input_bytes = BlockPixels * 128, weight_bytes = BlockChannels * 128;
    static constexpr int stage_bytes = Stages * (input_bytes + weight_bytes);
    using BlockColumn = ColumnOf<Op, BlockChannels>;
    using Items = ItemOrder<BlockColumn::count, int64_t{BlockChannels} * Reduction::steps * 128>;

    static_assert(BlockPixels == 64 || BlockPixels == 128 || BlockPixels == 256);
    static_assert(BlockChannels % 32 == 0 && repeats * group_channels <= 256);

    using Work =
        std::conditional_t<Balanced, BalancedWork<EvenItems<Reduction::steps>>, WorkInTurn<Reduction::steps, Splits>>;
    static_assert(!Balanced || Splits == 1);
    using Exchange = ClusterSums<Op, ThreadSums, BlockPixels, BlockChannels, (Splits > 1 ? Splits : 2), multipliers>;
    // What a block sends lies in the stages, which are read by then.
    static_assert(Splits == 1 || (Exchange::sent_bytes <= stage_bytes && Reduction::steps / Splits >= Stages));
    static_assert(Splits == 1 || (Splits <= 8 && repeats == 1));
    static constexpr int exchange_bytes = Splits > 1 ? static_cast<int>(sizeof(typename Exchange::Shared)) : 0;

    /** What follows the stages and the exchange in shared memory. */
    struct Shared {
        uint64_t filled[Stages], emptied[Stages];
        Source<Op> sources[2][BlockPixels];
        /** The parameters of an item's channels and, while some warps are behind, of the item before. Each group of
         * four warps has its own. */
        uint32_t params[2][ChannelParams<Op>::words][groups][group_channels];
        uint32_t worker;
        ListMemory list;
    };

public:
    static constexpr bool has_boxes = Boxes<Op, BlockPixels>::possible;
    static constexpr int threads = multipliers + 128;
    static constexpr int alignment = 1024;
    static constexpr int used_bytes = alignment + stage_bytes + exchange_bytes + static_cast<int>(sizeof(Shared));
    /** Two blocks of a cluster would share a multiprocessor while others are idle: one takes more than half of it. */
    static constexpr int shared_bytes = Splits > 1 && used_bytes < 116 * 1024 ? 116 * 1024 : used_bytes;
    /** Blocks on a multiprocessor, which has 228 KB and keeps one for each. */
    static constexpr int blocks = groups == 1 && 2 * (shared_bytes + 1024) <= 228 * 1024 ? 2 : 1;
    static_assert(shared_bytes <= 227 * 1024);

    __device__ __forceinline__ static void run(const Arguments &arguments, const Tiles &tiles) {
        if (blockIdx.x >= tiles.blocks) {
            return;
        }
        extern __shared__ char dynamic[];
        char *const stages = dynamic + (alignment - shared_address(dynamic) % alignment) % alignment;
        auto &exchange = *reinterpret_cast<typename Exchange::Shared *>(stages + stage_bytes);
        auto &shared = *reinterpret_cast<Shared *>(stages + stage_bytes + exchange_bytes);
        if (threadIdx.x == 0) {
            for (int i = 0; i < Stages; i++) {
                init_barrier(shared_address(&shared.filled[i]), has_boxes ? 1 : 128 + 1);
                init_barrier(shared_address(&shared.emptied[i]), groups);
            }
            if constexpr (Splits > 1) {
                Exchange::init(exchange);
            }
            publish_barriers();
        }
        if constexpr (Splits > 1) {
            sync_cluster();
        } else {
            __syncthreads();
        }
        wait_for_earlier_kernels();
        const Rows<Op> rows(arguments, tiles, shared.list);
        const Items order((rows.count() + BlockPixels - 1) / BlockPixels);
        const uint32_t items = order.count();
        const Work work = [&] {
            if constexpr (Balanced) {
                return Work(EvenItems<Reduction::steps>{items}, tiles.blocks, arguments.signals, shared.worker);
            } else {
                return Work{items, tiles.blocks};
            }
        }();
        if (threadIdx.x >= threads) {
            // The kernel has more for other variants.
            return;
        }
        const Sm90 block{arguments, tiles.input_map, rows, order, work, stages, exchange, shared};
        if (threadIdx.x >= multipliers) {
            if constexpr (has_boxes) {
                block.copy_boxes();
            } else {
                block.copy_rows();
            }
        } else {
            block.multiply();
        }
    }

private:
    const Arguments &a;
    const TensorMap &input_map;
    const Rows<Op> &rows;
    const Items &order;
    const Work &work;
    char *const stages;
    typename Exchange::Shared &exchange;
    Shared &shared;

    __device__ Sm90(const Arguments &arguments, const TensorMap &given_map, const Rows<Op> &given_rows,
                    const Items &given_order, const Work &given_work, char *given_stages,
                    typename Exchange::Shared &given_exchange, Shared &given_shared)
        : a(arguments), input_map(given_map), rows(given_rows), order(given_order), work(given_work),
          stages(given_stages), exchange(given_exchange), shared(given_shared) {
    }

    __device__ uint32_t row_of(uint32_t item) const {
        return order.row(item) * BlockPixels;
    }
    __device__ BlockColumn column_of(uint32_t item) const {
        return BlockColumn(order.column(item));
    }
    __device__ char *weights_of(uint32_t stage) const {
        return stages + Stages * input_bytes + stage * weight_bytes;
    }

    /** A stage and how often it was used before. */
    struct Turn {
        uint32_t stage = 0, parity = 0;

        __device__ void next() {
            if (++stage == Stages) {
                stage = 0;
                parity ^= 1;
            }
        }
    };

    // ---- Copying ----

    /** Finds what the rows of items read, an item ahead. Each thread looks up some rows, for all. */
    struct Lookup {
        static constexpr int looked_up = (BlockPixels + 127) / 128;
        const Sm90 &block;
        typename Rows<Op>::Entry entries[looked_up];
        uint32_t first_row = 0;
        int buffer = 1;

        __device__ static uint32_t own(int i) {
            return threadIdx.x - multipliers + 128 * i;
        }
        __device__ void fetch(const typename Work::Walk &walk) {
            // Without rows there is no item to divide.
            first_row = walk.has_segment() ? block.row_of(walk.segment().item) : 0;
#pragma unroll
            for (int i = 0; i < looked_up; i++) {
                entries[i] = walk.has_segment() ? block.rows.fetch(first_row + own(i)) : typename Rows<Op>::Entry{};
            }
        }
        /** The sources of the item that was fetched. */
        __device__ const Source<Op> *finish() {
            buffer ^= 1;
            Source<Op> *const sources = block.shared.sources[buffer];
#pragma unroll
            for (int i = 0; i < looked_up; i++) {
                const uint32_t row = first_row + own(i);
                if (BlockPixels % 128 == 0 || own(i) < BlockPixels) {
                    sources[own(i)] = row < block.rows.count()
                                          ? Source<Op>::of(block.a, block.rows.pixel(row, entries[i]))
                                          : Source<Op>{0, 0};
                }
            }
            sync_threads<128>(2);
            return sources;
        }
    };

    __device__ static void give_registers_back() {
        if constexpr (groups > 1) {
            lower_registers<72>();
        } else if constexpr (blocks > 1) {
            lower_registers<56>();
        }
    }

    /** Copies the weights step by step. The barrier then waits for these and other bytes. */
    struct WeightCopies {
        const char *from;
        uint32_t bytes;

        __device__ WeightCopies(const Arguments &a, const Segment &segment, const BlockColumn &column)
            : from(a.weights + column.weight_row(Reduction::steps, segment.begin) * 128),
              bytes(128 * column.weight_rows()) {
        }
        __device__ void copy(uint32_t to, uint32_t barrier, uint32_t other_bytes) const {
            arrive_and_expect(barrier, bytes + other_bytes);
            copy_bulk(to, from, bytes, barrier);
        }
        __device__ void step() {
            from += BlockColumn::step_rows * 128;
        }
    };

    __device__ void copy_boxes() const {
        give_registers_back();
        if (threadIdx.x != multipliers) {
            return;
        }
        const uint32_t filled = shared_address(shared.filled), emptied = shared_address(shared.emptied);
        Turn turn;
        for (typename Work::Walk walk(work); walk.has_segment(); walk.next()) {
            const Segment segment = walk.segment();
            const BlockColumn column = column_of(segment.item);
            const Boxes<Op, BlockPixels> boxes(a, input_map, rows, row_of(segment.item), column.input_channel());
            WeightCopies weights(a, segment, column);
            Reduction place(8 * segment.begin);
#pragma unroll 1
            for (int32_t step = segment.begin; step < segment.end; step++) {
                const uint32_t barrier = filled + turn.stage * 8;
                wait(emptied + turn.stage * 8, turn.parity ^ 1);
                weights.copy(shared_address(weights_of(turn.stage)), barrier, input_bytes);
                weights.step();
                boxes.copy(place, shared_address(stages) + turn.stage * input_bytes, barrier);
                place.step();
                turn.next();
            }
        }
    }

    __device__ void copy_rows() const {
        give_registers_back();
        // Eight threads copy a row's 128 bytes.
        constexpr int row_step = 128 / 8, thread_rows = BlockPixels / row_step;
        const uint32_t thread = threadIdx.x - multipliers, piece = thread % 8, first_row = thread / 8;
        const uint32_t warp = uniform(thread / 32);
        const uint32_t to = shared_address(stages) + first_row * 128 + (piece ^ first_row % 8) * 16;
        const uint32_t filled = shared_address(shared.filled), emptied = shared_address(shared.emptied);
        const InputCopies<Op> input(a);
        Turn turn;
        typename Work::Walk walk(work);
        Lookup lookup{*this};
        lookup.fetch(walk);
        while (walk.has_segment()) {
            const Segment segment = walk.segment();
            const BlockColumn column = column_of(segment.item);
            const char *from[thread_rows];
            uint32_t readable[thread_rows];
            const Source<Op> *const found = lookup.finish();
#pragma unroll
            for (int i = 0; i < thread_rows; i++) {
                const Source<Op> source = found[first_row + i * row_step];
                from[i] = a.input.data + int64_t{source.at + column.input_channel() / Reduction::lanes} * 16;
                readable[i] = source.readable;
            }
            walk.next();
            lookup.fetch(walk);
            WeightCopies weights(a, segment, column);
            Reduction place(8 * segment.begin + static_cast<int32_t>(piece));
#pragma unroll 1
            for (int32_t step = segment.begin; step < segment.end; step++) {
                const uint32_t barrier = filled + turn.stage * 8;
                wait(emptied + turn.stage * 8, turn.parity ^ 1);
                // The warps take turns, since this takes as long as a warp's rows.
                if (warp == static_cast<uint32_t>(step) % 4) {
                    if (thread % 32 == 0) {
                        weights.copy(shared_address(weights_of(turn.stage)), barrier, 0);
                    }
                    __syncwarp();
                }
                weights.step();
                const int64_t offset = int64_t{place.offset(a)} * 16;
                const uint32_t needed = place.needed();
#pragma unroll
                for (int i = 0; i < thread_rows; i++) {
                    // Few rows are copied as fast as possible. The longer test spreads many over the step: on an H200,
                    // blocks that copied eight at once were 5 % slower.
                    const bool is_in =
                        thread_rows > 4 ? place.is_in(readable[i]) : place.is_whole() && (~readable[i] & needed) == 0;
                    input.copy(to + turn.stage * input_bytes + i * (row_step * 128), from[i] + offset, is_in);
                }
                arrive_after_copies(barrier);
                turn.next();
                turn.stage = uniform(turn.stage);
                place.step();
            }
        }
        wait_for_copies();
    }

    // ---- Multiplying ----

    __device__ void empty(int stage) const {
        if (threadIdx.x % 128 == 0) {
            arrive(shared_address(&shared.emptied[stage]));
        }
    }

    /** The parameters of the channels that these four warps store, on their way to shared memory. From global memory
     * they would come as late as they are needed, over and over. */
    struct ThreadParams {
        static constexpr int values = (group_channels + 127) / 128, words = ChannelParams<Op>::words;
        uint32_t loaded[words][values];

        __device__ ThreadParams(const Arguments &a, int32_t channel) {
            const ChannelParams<Op> params = ChannelParams<Op>::of(a);
#pragma unroll
            for (int i = 0; i < values; i++) {
                const int32_t own = threadIdx.x % 128 + 128 * i, c = channel + own;
#pragma unroll
                for (int word = 0; word < words; word++) {
                    loaded[word][i] = own < group_channels && c < Op::out_channels ? params.word(word, c) : 0;
                }
            }
        }
        __device__ ChannelParams<Op> store(Shared &shared, uint32_t done) const {
            auto &params = shared.params[done % 2];
            const uint32_t group = threadIdx.x / 128;
#pragma unroll
            for (int i = 0; i < values; i++) {
                const uint32_t own = threadIdx.x % 128 + 128 * i;
#pragma unroll
                for (int word = 0; word < words; word++) {
                    if (own < group_channels) {
                        params[word][group][own] = loaded[word][i];
                    }
                }
            }
            return ChannelParams<Op>::in(params[0][group], groups * group_channels);
        }
    };

    using Sums = Sum[repeats][group_channels / 2];

    /** Adds the products of a segment's steps to the sums. Returns the stage of the last step, whose products are under
     * way. */
    __device__ __forceinline__ int add_steps(const Segment &segment, const SharedMatrix &input,
                                             const SharedMatrix &weights, uint32_t filled, Turn &turn,
                                             Sums &sums) const {
        bool adds = false;
        int last = -1;
#pragma unroll 1
        for (int32_t step = segment.begin; step < segment.end; step++) {
            wait(filled + turn.stage * 8, turn.parity);
            fence_registers(sums);
            begin_products();
#pragma unroll
            for (int k = 0; k < 4; k++) {
#pragma unroll
                for (int i = 0; i < repeats; i++) {
                    multiply_add(Element{}, sums[i],
                                 input.at(turn.stage * (input_bytes / 16) + i * (group_rows * 8) + k * 2),
                                 weights.at(turn.stage * (weight_bytes / 16) + k * 2), adds);
                }
                adds = true;
            }
            commit_products();
            // The step before is done.
            wait_for_products<1>();
            fence_registers(sums);
            // With splits, the last steps' stages are needed below.
            if (last >= 0 && (Splits == 1 || step <= segment.end - Stages)) {
                empty(last);
            }
            last = turn.stage;
            turn.next();
        }
        return last;
    }

    __device__ void multiply() const {
        if constexpr (groups > 1) {
            raise_registers<216>();
        } else if constexpr (blocks > 1) {
            raise_registers<200>();
        }
        const uint32_t first_stage = keep_value(shared_address(stages));
        const SharedMatrix input(first_stage + threadIdx.x / 128 % row_groups * (64 * 128), 128);
        // The compiler does not know that all threads of a single group have the same channels.
        const int32_t first_channel = channel_groups == 1 ? 0 : ThreadSums::channel();
        const SharedMatrix weights(first_stage + Stages * input_bytes + first_channel * 128, 128);
        Sums sums;

        const uint32_t filled = keep_value(shared_address(shared.filled));
        Turn turn;
        uint32_t done = 0;
        for (typename Work::Walk walk(work); walk.has_segment(); walk.next(), done++) {
            const Segment segment = walk.segment();
            // The rows whose results this thread stores, or with splits one that it looks up for all.
            constexpr int thread_rows = Splits > 1 ? 1 : 2 * repeats;
            const uint32_t first_row = row_of(segment.item) + (Splits > 1 ? threadIdx.x : ThreadSums::row());
            const auto row_at = [&](int i) { return first_row + i / 2 * group_rows + i % 2 * 8; };
            typename Rows<Op>::Entry entries[thread_rows];
#pragma unroll
            for (int i = 0; i < thread_rows; i++) {
                entries[i] = rows.fetch(row_at(i));
            }
            const BlockColumn column = column_of(segment.item);
            const int32_t channel = column.channel();
            const ThreadParams thread_params(a, channel + ThreadSums::channel());
            const int last = add_steps(segment, input, weights, filled, turn, sums);
            Place places[thread_rows];
#pragma unroll
            for (int i = 0; i < thread_rows; i++) {
                places[i] = Place::of(rows, row_at(i), entries[i]);
            }
            // Not before, because the sums take most registers.
            const Results results(a);
            wait_for_products<0>();
            fence_registers(sums);
            const ChannelParams<Op> params = thread_params.store(shared, done);
            if constexpr (Splits > 1) {
                if constexpr (groups > 1) {
                    sync_threads<multipliers>(1);
                }
                // Groups that have channels of their own have stored the parameters of all beside each other.
                Exchange::store(a, results, exchange, stages, sums[0], places[0], done,
                                params.from(-ThreadSums::channel()), channel, column.end());
                for (int i = 0; i < Stages; i++) {
                    empty(i);
                }
            } else {
                empty(last);
                if constexpr (Balanced) {
                    const BalancedSums<Sum, multipliers, Work> others(a, work);
                    if (segment.end < Reduction::steps) {
                        others.publish(sums);
                        continue;
                    }
                    if (segment.begin > 0) {
                        others.collect(sums, segment.item);
                    }
                }
                // Its name is above those for all multipliers and for the copies.
                sync_threads<128>(3 + static_cast<int>(threadIdx.x / 128));
#pragma unroll
                for (int i = 0; i < repeats; i++) {
                    const Place two[2] = {places[2 * i], places[2 * i + 1]};
                    store_fragment<Op, group_channels>(a, results, two, sums[i], params,
                                                       channel + ThreadSums::channel(), column.end());
                }
            }
        }
        if constexpr (Splits > 1) {
            Exchange::wait_until_read(exchange, done);
        }
        if constexpr (Balanced) {
            if (threadIdx.x == 0) {
                work.leave(a.signals);
            }
        }
    }
};

}  // namespace distile::tensor_core

#endif
