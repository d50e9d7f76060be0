/** \file
 * A masked convolution over a cover of mixed granularity, on the tensor cores of compute capability 9.0: one launch
 * computes tiles, whose input it copies in boxes, and then single pixels, whose input it copies row by row. Each is
 * what kernels/tensor_core/sm90.cuh does in kernels of their own.
 */
#ifndef DISTILE_BENCH_COVER_SM90_CUH
#define DISTILE_BENCH_COVER_SM90_CUH

#include "kernels/tensor_core/columns.h"
#include "kernels/tensor_core/sums.cuh"
#include "kernels/tensor_core/wgmma.cuh"
#include "kernels/tensor_core/work.cuh"
#include <type_traits>

namespace distile::bench {

using namespace distile::tensor_core;

/** The rows of the matrix product: the pixels of tiles, in whole blocks, and behind them single pixels. */
template<class Op, int BlockPixels> class CoverRows {
public:
    static constexpr int32_t tile_h = Op::tile_h, tile_w = Op::tile_w, tile_pixels = tile_h * tile_w;

    __device__ CoverRows(const Arguments &arguments, const Tiles &tiles, const Tiles &pixels)
        : a_(arguments), tiles_(tiles), pixels_(pixels), num_tiles_(*tiles.count), num_pixels_(*pixels.count) {
        tile_rows_ = (num_tiles_ * tile_pixels + BlockPixels - 1) / BlockPixels * BlockPixels;
    }
    __device__ uint32_t count() const {
        return tile_rows_ + num_pixels_;
    }
    __device__ bool is_of_tile(uint32_t row) const {
        return row < tile_rows_;
    }
    /** What the lists say of a row. */
    struct Entry {
        uint32_t xy, image;
    };
    static constexpr uint32_t nowhere = ~0u;

    __device__ Entry fetch(uint32_t row) const {
        const bool of_tile = is_of_tile(row);
        const uint32_t at = of_tile ? row / tile_pixels : row - tile_rows_;
        const Tiles &list = of_tile ? tiles_ : pixels_;
        return at < (of_tile ? num_tiles_ : num_pixels_)
                   ? Entry{__ldcg(list.xy + at), __ldcg(list.xy + list.capacity + at)}
                   : Entry{0, nowhere};
    }
    __device__ Pixel pixel(uint32_t row, const Entry &entry) const {
        const uint32_t within = is_of_tile(row) ? row % tile_pixels : 0;
        return {static_cast<int32_t>((entry.xy & 0xffff) + within % tile_w),
                static_cast<int32_t>((entry.xy >> 16) + within / tile_w), static_cast<int32_t>(entry.image)};
    }
    __device__ Place place(uint32_t row, const Entry &entry) const {
        if (entry.image == nowhere) {
            return {0, Place::nowhere};
        }
        const Pixel at = pixel(row, entry);
        const bool stored =
            !is_of_tile(row) ||
            (at.x < a_.width && at.y < a_.height &&
             (a_.store_tiles != 0 ||
              (a_.bits[(at.image * a_.height + at.y) * a_.words_per_row + at.x / 32] >> (at.x % 32) & 1) != 0));
        return {static_cast<uint32_t>(at.x) | static_cast<uint32_t>(at.y) << 16,
                stored ? static_cast<uint32_t>(at.image) : Place::nowhere};
    }

private:
    const Arguments &a_;
    const Tiles &tiles_, &pixels_;
    uint32_t num_tiles_, num_pixels_, tile_rows_;
};

/** Two groups of four warps multiply, and four warps copy, as in Sm90. The tiles are those of Op. */
template<class Op, int BlockPixels, int BlockChannels, int Stages, bool Balanced> class CoverSm90 {
    using Element = typename Op::Element;
    using Sum = SumOf<Op>;
    using Results = Epilogue<Op>;
    using Reduction = ReductionPlace<Op>;
    using Lines = CoverRows<Op, BlockPixels>;

    static constexpr int groups = 2, multipliers = 128 * groups;
    static constexpr int group_rows = 64 * groups, repeats = BlockPixels / group_rows;
    using ThreadSums = Fragment<groups, BlockChannels>;
    static constexpr int row_bytes = BlockPixels * 128, weight_bytes = BlockChannels * 128;

    static constexpr int block_tiles = BlockPixels / Lines::tile_pixels;
    static constexpr int input_bytes = row_bytes, stage_bytes = Stages * (input_bytes + weight_bytes);
    static_assert(BlockPixels == 128 || BlockPixels == 256);
    static_assert(repeats * BlockChannels <= 256);
    static_assert(Op::read_channels % Reduction::step_channels == 0);

    using BlockColumn = ColumnOf<Op, BlockChannels>;
    using Items = ItemOrder<BlockColumn::count, int64_t{BlockChannels} * Reduction::steps * 128>;
    using Work =
        std::conditional_t<Balanced, BalancedWork<EvenItems<Reduction::steps>>, WorkInTurn<Reduction::steps, 1>>;

    struct Shared {
        uint64_t filled[Stages], emptied[Stages];
        Source<Op> sources[2][BlockPixels];
        uint32_t params[2][ChannelParams<Op>::words][groups][BlockChannels];
        uint32_t worker;
    };

public:
    static constexpr int threads = multipliers + 128;
    static constexpr int alignment = 1024;
    static constexpr int shared_bytes = alignment + stage_bytes + static_cast<int>(sizeof(Shared));
    static_assert(shared_bytes <= 227 * 1024);

    __device__ __forceinline__ static void run(const Arguments &arguments, const Tiles &tiles, const Tiles &pixels) {
        extern __shared__ char dynamic[];
        char *const stages = dynamic + (alignment - shared_address(dynamic) % alignment) % alignment;
        auto &shared = *reinterpret_cast<Shared *>(stages + stage_bytes);
        if (threadIdx.x == 0) {
            for (int i = 0; i < Stages; i++) {
                init_barrier(shared_address(&shared.filled[i]), 128 + 1);
                init_barrier(shared_address(&shared.emptied[i]), groups);
            }
            publish_barriers();
        }
        __syncthreads();
        wait_for_earlier_kernels();
        const Lines rows(arguments, tiles, pixels);
        const Items order((rows.count() + BlockPixels - 1) / BlockPixels);
        const uint32_t items = order.count();
        const Work work = [&] {
            if constexpr (Balanced) {
                return Work(EvenItems<Reduction::steps>{items}, tiles.blocks, arguments.signals, shared.worker);
            } else {
                return Work{items, tiles.blocks};
            }
        }();
        const CoverSm90 block{arguments, tiles.input_map, rows, order, work, stages, shared};
        if (threadIdx.x >= multipliers) {
            block.copy();
        } else {
            block.multiply();
        }
    }

private:
    const Arguments &a;
    const TensorMap &input_map;
    const Lines &rows;
    const Items &order;
    const Work &work;
    char *const stages;
    Shared &shared;

    __device__ CoverSm90(const Arguments &arguments, const TensorMap &given_map, const Lines &given_rows,
                         const Items &given_order, const Work &given_work, char *given_stages, Shared &given_shared)
        : a(arguments), input_map(given_map), rows(given_rows), order(given_order), work(given_work),
          stages(given_stages), shared(given_shared) {
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

    /** Copies the boxes and the weights of a segment. One thread does it, but all arrive, as barriers expect it of
     * copies of rows. */
    __device__ void copy_boxes(const Segment &segment, Turn &turn) const {
        const BlockColumn column = column_of(segment.item);
        WeightCopies weights(a, segment, column);
        const uint32_t filled = shared_address(shared.filled), emptied = shared_address(shared.emptied);
        if (threadIdx.x != multipliers) {
#pragma unroll 1
            for (int32_t step = segment.begin; step < segment.end; step++) {
                wait(emptied + turn.stage * 8, turn.parity ^ 1);
                arrive(filled + turn.stage * 8);
                turn.next();
            }
            return;
        }
        Pixel corners[block_tiles];
#pragma unroll
        for (int i = 0; i < block_tiles; i++) {
            const uint32_t row = row_of(segment.item) + i * Lines::tile_pixels;
            const typename Lines::Entry entry = rows.fetch(row);
            const Pixel pixel = rows.pixel(row, entry);
            constexpr int32_t beyond = -(1 << 20);  // The box is zero there.
            corners[i] = entry.image == Lines::nowhere
                             ? Pixel{beyond, beyond, 0}
                             : Pixel{pixel.x * Op::stride_w - Op::pad_left - a.first_column,
                                     pixel.y * Op::stride_h - Op::pad_top - a.first_row, pixel.image};
        }
        Reduction place(8 * segment.begin);
#pragma unroll 1
        for (int32_t step = segment.begin; step < segment.end; step++) {
            const uint32_t barrier = filled + turn.stage * 8;
            wait(emptied + turn.stage * 8, turn.parity ^ 1);
            weights.copy(shared_address(weights_of(turn.stage)), barrier, input_bytes);
            weights.step();
#pragma unroll
            for (int i = 0; i < block_tiles; i++) {
                copy_box(shared_address(stages) + turn.stage * input_bytes + i * (Lines::tile_pixels * 128), &input_map,
                         column.input_channel() + place.block * Reduction::step_channels,
                         corners[i].x + place.column * Op::dilation_w, corners[i].y + place.row * Op::dilation_h,
                         corners[i].image, barrier);
            }
            arrive(barrier);
            place.step();
            turn.next();
        }
    }

    /** Finds what the rows of items of single pixels read, an item ahead. Each thread looks up some, for all. */
    struct Lookup {
        static constexpr int looked_up = BlockPixels / 128;
        const CoverSm90 &block;
        typename Lines::Entry entries[looked_up];
        uint32_t first_row = 0;
        int buffer = 1;

        __device__ static uint32_t own(int i) {
            return threadIdx.x - multipliers + 128 * i;
        }
        __device__ void fetch(const typename Work::Walk &walk) {
            if (walk.has_segment()) {
                first_row = block.row_of(walk.segment().item);
#pragma unroll
                for (int i = 0; i < looked_up; i++) {
                    entries[i] = block.rows.fetch(first_row + own(i));
                }
            }
        }
        __device__ const Source<Op> *finish() {
            buffer ^= 1;
            Source<Op> *const sources = block.shared.sources[buffer];
#pragma unroll
            for (int i = 0; i < looked_up; i++) {
                sources[own(i)] = entries[i].image == Lines::nowhere
                                      ? Source<Op>{0, 0}
                                      : Source<Op>::of(block.a, block.rows.pixel(first_row + own(i), entries[i]));
            }
            sync_threads<128>(2);
            return sources;
        }
    };

    __device__ void copy_rows(const Segment &segment, const Source<Op> *found, Turn &turn) const {
        // Eight threads copy a row's 128 bytes.
        constexpr int row_step = 128 / 8, thread_rows = BlockPixels / row_step;
        const uint32_t thread = threadIdx.x - multipliers, piece = thread % 8, first_row = thread / 8;
        const uint32_t warp = uniform(thread / 32);
        const uint32_t to = shared_address(stages) + first_row * 128 + (piece ^ first_row % 8) * 16;
        const uint32_t filled = shared_address(shared.filled), emptied = shared_address(shared.emptied);
        const InputCopies<Op> input(a);
        const BlockColumn column = column_of(segment.item);
        const char *from[thread_rows];
        uint32_t readable[thread_rows];
#pragma unroll
        for (int i = 0; i < thread_rows; i++) {
            const Source<Op> source = found[first_row + i * row_step];
            from[i] = a.input.data + int64_t{source.at + column.input_channel() / Reduction::lanes} * 16;
            readable[i] = source.readable;
        }
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
#pragma unroll
            for (int i = 0; i < thread_rows; i++) {
                input.copy(to + turn.stage * input_bytes + i * (row_step * 128), from[i] + offset,
                           place.is_in(readable[i]));
            }
            arrive_after_copies(barrier);
            turn.next();
            turn.stage = uniform(turn.stage);
            place.step();
        }
    }

    __device__ void copy() const {
        lower_registers<72>();
        Turn turn;
        typename Work::Walk walk(work);
        Lookup lookup{*this};
        lookup.fetch(walk);
        while (walk.has_segment()) {
            const Segment segment = walk.segment();
            const bool of_tiles = rows.is_of_tile(row_of(segment.item));
            const Source<Op> *const found = of_tiles ? nullptr : lookup.finish();
            walk.next();
            lookup.fetch(walk);
            if (of_tiles) {
                copy_boxes(segment, turn);
                __syncwarp();
            } else {
                copy_rows(segment, found, turn);
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

    /** The parameters of the channels that these four warps store, on their way to shared memory. */
    struct ThreadParams {
        static constexpr int values = (BlockChannels + 127) / 128, words = ChannelParams<Op>::words;
        uint32_t loaded[words][values];

        __device__ ThreadParams(const Arguments &a, int32_t channel) {
            const ChannelParams<Op> params = ChannelParams<Op>::of(a);
#pragma unroll
            for (int i = 0; i < values; i++) {
                const int32_t own = threadIdx.x % 128 + 128 * i, c = channel + own;
#pragma unroll
                for (int word = 0; word < words; word++) {
                    loaded[word][i] = own < BlockChannels && c < Op::out_channels ? params.word(word, c) : 0;
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
                    if (own < BlockChannels) {
                        params[word][group][own] = loaded[word][i];
                    }
                }
            }
            return ChannelParams<Op>::in(params[0][group], groups * BlockChannels);
        }
    };

    using Sums = Sum[repeats][BlockChannels / 2];

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
            if (last >= 0) {
                empty(last);
            }
            last = turn.stage;
            turn.next();
        }
        return last;
    }

    __device__ void multiply() const {
        raise_registers<216>();
        const uint32_t first_stage = keep_value(shared_address(stages));
        const SharedMatrix input(first_stage + threadIdx.x / 128 * (64 * 128), 128);
        const SharedMatrix weights(first_stage + Stages * input_bytes, 128);
        Sums sums;
        const uint32_t filled = keep_value(shared_address(shared.filled));
        Turn turn;
        uint32_t done = 0;
        for (typename Work::Walk walk(work); walk.has_segment(); walk.next(), done++) {
            const Segment segment = walk.segment();
            constexpr int thread_rows = 2 * repeats;
            const uint32_t first_row = row_of(segment.item) + ThreadSums::row();
            const auto row_at = [&](int i) { return first_row + i / 2 * group_rows + i % 2 * 8; };
            typename Lines::Entry entries[thread_rows];
#pragma unroll
            for (int i = 0; i < thread_rows; i++) {
                entries[i] = rows.fetch(row_at(i));
            }
            const BlockColumn column = column_of(segment.item);
            const int32_t channel = column.channel();
            const ThreadParams thread_params(a, channel);
            const int last = add_steps(segment, input, weights, filled, turn, sums);
            Place places[thread_rows];
#pragma unroll
            for (int i = 0; i < thread_rows; i++) {
                places[i] = rows.place(row_at(i), entries[i]);
            }
            // Not before, because the sums take most registers.
            const Results results(a);
            wait_for_products<0>();
            fence_registers(sums);
            empty(last);
            const ChannelParams<Op> params = thread_params.store(shared, done);
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
                store_fragment<Op, BlockChannels>(a, results, two, sums[i], params, channel, column.end());
            }
        }
        if constexpr (Balanced) {
            if (threadIdx.x == 0) {
                work.leave(a.signals);
            }
        }
    }
};

}  // namespace distile::bench

#endif
