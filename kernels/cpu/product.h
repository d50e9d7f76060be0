/** \file
 * Masked operators as matrix products by dot-product or matrix instructions. The rows of the product are the active
 * output pixels of one phase, its columns the output channels.
 *
 * A task stages what its rows read in blocks of rows, once for all output channels that read the same. For a block of
 * output channels after the other it multiplies all of its staged blocks, so that these weights are read from memory
 * once a task.
 *
 * How it stages and multiplies is a class `Method`, Steps or Columns:
 *
 *     using Types = ...;                      // The types, as below.
 *     // Sums are stored for whole multiples of this number of rows, as every full block is.
 *     static constexpr int32_t tile_rows;
 *     static constexpr bool balances;         // A block of fewer rows takes less time.
 *     static constexpr CostModel cost_model;  // As in partition.h.
 *     static void begin(), end();             // Around the work of a task.
 *     // The steps of the reduction in the weights of a phase.
 *     int32_t steps_of(const distile_taps &rows, const distile_taps &columns) const;
 *     int64_t block_elements() const;         // Room for a staged block, a multiple of 64 bytes.
 *     // Blocks of output channels with the same one read the same channels.
 *     int32_t first_input(const ChannelBlock &channels) const;
 *     // Once for a block of rows, before it is staged.
 *     void prepare(const Phase &phase, const Rows<Types> &source, Row *rows, int32_t count, Element *to) const;
 *     // Stages a block of rows for a block of output channels.
 *     void stage(const Phase &phase, const Rows<Types> &source, const Row *rows, int32_t count,
 *                const ChannelBlock &channels, Element *to) const;
 *     // The parts of the reduction. Each is multiplied with all staged blocks before the next one.
 *     int32_t chunks(const Phase &phase) const;
 *     // Room for the weights of a chunk, a multiple of 64 bytes; 0 if they are read in place.
 *     int64_t weight_elements() const;
 *     // Loads the weights of a chunk, of one block of output channels.
 *     LoadedWeights<Weight> load(const Phase &phase, int32_t chunk, const ChannelBlock &channels,
 *                                Weight *room) const;
 *     // Makes the sums of `count` rows and these weights, or adds to those of earlier chunks: sums[row][16 * vectors].
 *     void multiply(const Phase &phase, int32_t chunk, const LoadedWeights<Weight> &weights, const Element *staged,
 *                   const Row *rows, int32_t count, const ChannelBlock &channels, Sum *sums) const;
 *
 * What differs between types is a class `Types`, which a call makes once:
 *
 *     using Element = ..., Weight = ..., Sum = ...;  // Types of inputs, weights and sums. Sums have 4 bytes.
 *     static constexpr int32_t parts;  // Numbers that are multiplied for a stored one: 1, or 2 with split().
 *     static void split(const Element *from, int64_t count, Element *high, Element *low);
 *     bool stages_as_stored() const;                // What is staged equals the input.
 *     uint8_t flip() const;                         // What is staged of each byte is its exclusive or with this.
 *     void pad(Element *to, int32_t count) const;   // Stages what counts as 0.
 *     const char *output(const Row &row, int32_t channel) const;
 *     // Stores the results of `num_rows` rows of sums.
 *     void store(const Phase &phase, const Row *rows, int32_t num_rows, const Sum *sums,
 *                const ChannelBlock &channels) const;
 *
 * All depend on a type of the file that includes this, which tells instruction sets apart: a linker must not merge
 * their functions.
 */
#ifndef DISTILE_DOT_PRODUCT_PRODUCT_H
#define DISTILE_DOT_PRODUCT_PRODUCT_H

#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/packed_weights.h"
#include "kernels/cpu/partition.h"
#include "kernels/cpu/rows.h"
#include "kernels/dot_products.h"

namespace distile::dot_product {

template<class Method> class Product {
public:
    Product(const distile_dot_product_code &code, const distile_kernel_call &call)
        : code_(code), call_(call), types_(code, call), method_(code, call, types_),
          out_channels_(call.operands[call.num_operands - 1].dim[Channel].extent),
          padded_section_(divide_up(code.section_channels, vector_channels) * vector_channels),
          section_blocks_(divide_up(padded_section_, code.block_channels)),
          blocks_(divide_up(out_channels_, code.section_channels) * section_blocks_) {
        staged_rows_ = code.staged_blocks * code.block_pixels;
        const ChannelBlock first = channels_of(0);
        const auto block_bytes = static_cast<int32_t>(types_.output(Row{}, first.count) - types_.output(Row{}, 0));
        line_blocks_ = block_bytes < line_bytes ? line_bytes / block_bytes : 1;
        WorkShape work{};
        work.tiles = call.num_tiles;
        work.tile_pixels = code.tile_h * code.tile_w;
        work.block_pixels = code.block_pixels;
        work.staged_blocks = code.staged_blocks;
        work.blocks = divide_up(blocks_, line_blocks_);
        work.block_vectors = line_blocks_ * first.vectors;
        for (int32_t row = 0; row < code.scale_h; row++) {
            for (int32_t column = 0; column < code.scale_w; column++) {
                work.steps += method_.steps_of(code.rows[row], code.columns[column]);
            }
        }
        work.steps /= code.scale_h * code.scale_w;
        work.shares_staging = method_.first_input(first) == method_.first_input(channels_of(blocks_ - 1));
        work.threads = call.threads;
        work.least_splits = code.channel_splits;
        partition_ = Partition<Method>::best(work, Method::cost_model);
    }

    /** The return value is that of a distile_kernel_function. */
    int run() {
        call_.hooks->parallel_for(
            call_.hooks,
            [](void *closure, int32_t index) {
                auto &product = *static_cast<Product *>(closure);
                const int32_t splits = product.partition_.splits;
                product.compute(index / splits, index % splits);
            },
            this, partition_.parts * partition_.splits);
        return out_of_memory_ ? DISTILE_CALL_OUT_OF_MEMORY : 0;
    }

private:
    using Types = typename Method::Types;
    using Element = typename Types::Element;
    using Weight = typename Types::Weight;
    using Sum = typename Types::Sum;

    /** The bytes of a cache line. */
    static constexpr int32_t line_bytes = 64;

    static int32_t least(int64_t a, int64_t b) {
        return static_cast<int32_t>(a < b ? a : b);
    }
    static int32_t divide_up(int32_t a, int32_t b) {
        return static_cast<int32_t>((int64_t{a} + b - 1) / b);
    }
    /** The first of `count` things that belong to a part. */
    static int32_t begin_of(int32_t part, int32_t parts, int32_t count) {
        return static_cast<int32_t>(int64_t{count} * part / parts);
    }

    /** The first tile of a part, or the end of all. */
    int32_t first_tile(int32_t part) const {
        const int32_t units = divide_up(call_.num_tiles, partition_.unit);
        return least(int64_t{begin_of(part, partition_.parts, units)} * partition_.unit, call_.num_tiles);
    }

    /** The first block of output channels of a split, or the end of all. */
    int32_t first_block(int32_t split) const {
        const int32_t lines = divide_up(blocks_, line_blocks_);
        return least(int64_t{begin_of(split, partition_.splits, lines)} * line_blocks_, blocks_);
    }

    /** The memory of a task. */
    struct Task {
        Element *staged;
        int64_t block_elements;  ///< The elements of a staged block.
        Sum *sums;               ///< The sums of all rows after each other.
        Weight *weights;
        Row *rows;

        Element *staged_block(int32_t block) const {
            return staged + block * block_elements;
        }
    };

    /** Computes a part of the tiles and of the output channels. */
    void compute(int32_t part, int32_t split) {
        Task task{};
        task.block_elements = method_.block_elements();
        const size_t staged_bytes = code_.staged_blocks * task.block_elements * sizeof(Element),
                     sum_bytes = int64_t{staged_rows_} * code_.block_channels * sizeof(Sum),
                     weight_bytes = method_.weight_elements() * sizeof(Weight);
        void *const memory =
            call_.hooks->allocate(call_.hooks, staged_bytes + sum_bytes + weight_bytes + staged_rows_ * sizeof(Row));
        if (!memory) {
            __atomic_store_n(&out_of_memory_, true, __ATOMIC_RELAXED);
            return;
        }
        // All sizes are multiples of 64.
        auto *bytes = static_cast<char *>(memory);
        task.staged = reinterpret_cast<Element *>(bytes);
        task.sums = reinterpret_cast<Sum *>(bytes += staged_bytes);
        task.weights = reinterpret_cast<Weight *>(bytes += sum_bytes);
        task.rows = reinterpret_cast<Row *>(bytes + weight_bytes);
        Method::begin();
        Phase phase{};
        for (phase.row = 0; phase.row < code_.scale_h; phase.row++) {
            for (phase.column = 0; phase.column < code_.scale_w; phase.column++) {
                phase.rows = code_.rows[phase.row];
                phase.columns = code_.columns[phase.column];
                phase.steps = method_.steps_of(phase.rows, phase.columns);
                Rows<Types> source(code_, call_, types_, first_tile(part), first_tile(part + 1));
                while (const int32_t count = source.take(phase, task.rows, staged_rows_)) {
                    const Blocks blocks = blocks_of(count);
                    const int32_t end = first_block(split + 1), begin = first_block(split);
                    fetch_outputs(task.rows, count, begin);
                    for (int32_t block = 0; block < blocks.count; block++) {
                        method_.prepare(phase, source, task.rows + blocks.begin(block), blocks.size(block),
                                        task.staged_block(block));
                    }
                    int32_t staged = -1;  // Its first input channel.
                    for (int32_t index = begin; index < end; index++) {
                        const ChannelBlock channels = channels_of(index);
                        if (method_.first_input(channels) != staged) {
                            staged = method_.first_input(channels);
                            for (int32_t block = 0; block < blocks.count; block++) {
                                method_.stage(phase, source, task.rows + blocks.begin(block), blocks.size(block),
                                              channels, task.staged_block(block));
                            }
                        }
                        multiply(phase, blocks, task, index, end);
                    }
                }
                phase.first_step += phase.steps;
                phase.index++;
            }
        }
        Method::end();
        call_.hooks->deallocate(call_.hooks, memory);
    }

    /** How rows are divided among blocks. */
    struct Blocks {
        int32_t count, rows;
        int32_t size_of_each, larger;  ///< The first `larger` blocks have one row more; the last may have less.

        int32_t begin(int32_t block) const {
            return least(int64_t{block} * size_of_each + (block < larger ? block : larger), rows);
        }
        int32_t size(int32_t block) const {
            return begin(block + 1) - begin(block);
        }
    };
    /** All have about as many rows, or all but the last are full. */
    Blocks blocks_of(int32_t rows) const {
        const int32_t count = divide_up(rows, code_.block_pixels);
        return Method::balances ? Blocks{count, rows, rows / count, rows % count}
                                : Blocks{count, rows, code_.block_pixels, 0};
    }
    /** Multiplies all staged blocks with a block of output channels, and stores the results. */
    void multiply(const Phase &phase, const Blocks &blocks, const Task &task, int32_t index, int32_t end) const {
        const ChannelBlock channels = channels_of(index);
        const int32_t chunks = method_.chunks(phase);
        for (int32_t chunk = 0; chunk < chunks; chunk++) {
            const LoadedWeights<Weight> weights = method_.load(phase, chunk, channels, task.weights);
            for (int32_t block = 0; block < blocks.count; block++) {
                const Row *const rows = task.rows + blocks.begin(block);
                if (chunk == 0 && index + 1 < end) {
                    fetch_outputs(rows, blocks.size(block), index + 1);
                }
                method_.multiply(phase, chunk, weights, task.staged_block(block), rows, blocks.size(block), channels,
                                 task.sums + int64_t{blocks.begin(block)} * channels.padded);
            }
        }
        types_.store(phase, task.rows, blocks.rows, task.sums, channels);
    }
    /** The lines that rows store of a block of output channels arrive in the cache, to be written: other cores may have
     * written them last. Always inline, because GCC drops calls of functions that only prefetch. */
    [[gnu::always_inline]] void fetch_outputs(const Row *rows, int32_t count, int32_t index) const {
        const ChannelBlock channels = channels_of(index);
        const int64_t bytes =
            types_.output(Row{}, channels.first + channels.count) - types_.output(Row{}, channels.first);
        for (int32_t i = 0; i < count; i++) {
            const char *const first = types_.output(rows[i], channels.first);
            for (int64_t line = 0; line < bytes; line += line_bytes) {
                __builtin_prefetch(first + line, 1);
            }
        }
    }
    /** A block of output channels. */
    ChannelBlock channels_of(int32_t index) const {
        const int32_t section = index / section_blocks_, before = index % section_blocks_ * code_.block_channels,
                      end = least((section + int64_t{1}) * code_.section_channels, out_channels_);
        ChannelBlock channels{};
        channels.section = section;
        channels.first = section * code_.section_channels + before;
        channels.place = section * padded_section_ + before;
        channels.padded = least(code_.block_channels, padded_section_ - before);
        channels.vectors = channels.padded / vector_channels;
        channels.count = least(channels.padded, end - channels.first);
        return channels;
    }

    const distile_dot_product_code &code_;
    const distile_kernel_call &call_;
    const Types types_;
    const Method method_;
    int32_t out_channels_, padded_section_, section_blocks_, blocks_, staged_rows_;
    int32_t line_blocks_;  ///< Blocks of output channels that share a line of the caches, which a thread writes alone.
    Partition<Method> partition_{};
    bool out_of_memory_ = false;
};

}  // namespace distile::dot_product

#endif
