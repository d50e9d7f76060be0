/** \file
 * Masked operators as matrix products by dot-product or matrix instructions. The rows of the product are the active
 * output pixels of one phase, its columns the output channels.
 *
 * A task stages what its rows read, once for all of its output channels, in blocks of rows:
 * [step of the reduction][row][64 bytes]. For a block of output channels after the other it multiplies all of its
 * staged blocks, so that these weights are read from memory once a task.
 *
 * What differs between instruction sets is a class `Set`:
 *
 *     using Numbers = ...;                    // The types, as below.
 *     static constexpr int32_t tile_rows;     // Sums are stored for whole multiples of so many rows.
 *     static constexpr bool balances;         // A block of fewer rows takes less time.
 *     static void begin(), end();             // Around the work of a task.
 *     // So many steps of the reduction are multiplied with all staged blocks before the next ones, so that their
 *     // weights stay in the nearest cache; 0: all steps.
 *     static constexpr int32_t chunk_steps;
 *     // Makes the sums of `rows` rows and `vectors` vectors, or adds to them if `adds`: sums[row][16 * vectors].
 *     static void multiply(const Block &block, int32_t rows, int32_t vectors, bool adds, Sum *sums);
 *
 * What differs between types is a class `Numbers`, which a call makes once:
 *
 *     using Element = ..., Weight = ..., Sum = ...;  // Of inputs, weights and sums. Sums have 4 bytes.
 *     void copy_step(const Element *from, Element *to) const;             // Stages 64 bytes of a pixel,
 *     void copy(const Element *from, Element *to, int32_t count) const;   // or fewer,
 *     void pad(Element *to, int32_t count) const;                         // or what counts as 0.
 *     const char *output(const Row &row, int32_t channel) const;
 *     // Stores the results of a row of sums.
 *     void store(const Phase &phase, const Row &row, const Sum *sums, int32_t channel, int32_t count) const;
 *
 * Both depend on a type of the file that includes this, which tells instruction sets apart: a linker must not merge
 * their functions.
 */
#ifndef DISTILE_DOT_PRODUCT_PRODUCT_H
#define DISTILE_DOT_PRODUCT_PRODUCT_H

#include "epilogue.h"
#include "rows.h"

namespace distile::dot_product {

/** The groups of a step of a block of the weights: [group][output channel][4 bytes]. */
constexpr int32_t step_groups = 16;

/** What one call of an instruction set's code multiplies. Distances in elements. */
template<class Numbers> struct Block {
    using Element = typename Numbers::Element;
    using Weight = typename Numbers::Weight;
    static constexpr int32_t step_elements = step_bytes / static_cast<int32_t>(sizeof(Element)),
                             group_elements = step_elements / step_groups,
                             weight_step = step_elements * vector_channels;

    const Element *staged;
    int32_t staged_step;  ///< Between the steps of a staged block.
    const Weight *weights;
    int64_t weight_block;  ///< Between blocks of 16 output channels.
    int32_t steps;
};

template<class Set> class Product {
public:
    Product(const distile_dot_product_code &code, const distile_kernel_call &call)
        : code_(code), call_(call), numbers_(code, call), weights_(call.operands[1]),
          out_channels_(call.operands[call.num_operands - 1].dim[Channel].extent) {
        const int32_t tile_pixels = code.tile_h * code.tile_w, blocks = weights_.dim[2].extent;
        staged_rows_ = code.staged_blocks * code.block_pixels;
        groups_ = divide_up(blocks, code.block_channels / vector_channels);
        splits_ = least(code.channel_splits, groups_);
        // As many rounds as the staged rows need, each with a part for every thread.
        const int32_t threads = divide_up(call.threads, splits_), part_tiles = most(staged_rows_ / tile_pixels, 1);
        const int32_t rounds = divide_up(call.num_tiles, threads * part_tiles);
        const int64_t full_blocks = (int64_t{call.num_tiles} * tile_pixels + code.block_pixels - 1) / code.block_pixels;
        parts_ = least(least(int64_t{rounds} * threads, call.num_tiles), full_blocks);
        if (parts_ * splits_ < call.threads) {
            // The blocks are fewer than the threads.
            splits_ = least(divide_up(call.threads, parts_), groups_);
        }
        for (int32_t row = 0; row < code.scale_h; row++) {
            for (int32_t column = 0; column < code.scale_w; column++) {
                most_steps_ = most(most_steps_, steps_of(row, column));
            }
        }
    }

    /** The return value is that of a distile_kernel_function. */
    int run() {
        call_.hooks->parallel_for(
            call_.hooks,
            [](void *closure, int32_t index) {
                auto &product = *static_cast<Product *>(closure);
                product.compute(index / product.splits_, index % product.splits_);
            },
            this, parts_ * splits_);
        return out_of_memory_ ? DISTILE_CALL_OUT_OF_MEMORY : 0;
    }

private:
    using Numbers = typename Set::Numbers;
    using Element = typename Numbers::Element;
    using Weight = typename Numbers::Weight;
    using Sum = typename Numbers::Sum;
    static constexpr int32_t step_elements = Block<Numbers>::step_elements, weight_step = Block<Numbers>::weight_step;

    static int32_t least(int64_t a, int64_t b) {
        return static_cast<int32_t>(a < b ? a : b);
    }
    static int32_t most(int32_t a, int32_t b) {
        return a > b ? a : b;
    }
    static int32_t divide_up(int32_t a, int32_t b) {
        return static_cast<int32_t>((int64_t{a} + b - 1) / b);
    }
    /** The first of `count` things that belong to a part. */
    static int32_t begin_of(int32_t part, int32_t parts, int32_t count) {
        return static_cast<int32_t>(int64_t{count} * part / parts);
    }
    int32_t steps_of(int32_t row, int32_t column) const {
        const int32_t channels = call_.operands[0].dim[Channel].extent;
        return divide_up(code_.rows[row].taps * code_.columns[column].taps * channels, step_elements);
    }

    /** The memory of a task. */
    struct Task {
        Element *staged;
        int64_t block_elements;  ///< Of a staged block.
        Sum *sums;
        int64_t block_sums;  ///< Room for the sums of a block.
        Row *rows;

        Element *staged_block(int32_t block) const {
            return staged + block * block_elements;
        }
        Sum *sums_of(int32_t block) const {
            return sums + block * block_sums;
        }
    };

    /** Computes a part of the tiles and of the output channels. */
    void compute(int32_t part, int32_t split) {
        Task task{};
        task.block_elements = int64_t{code_.block_pixels} * most_steps_ * step_elements;
        task.block_sums =
            int64_t{Set::tile_rows} * divide_up(code_.block_pixels, Set::tile_rows) * code_.block_channels;
        const size_t staged_bytes = code_.staged_blocks * task.block_elements * sizeof(Element),
                     sum_bytes = code_.staged_blocks * task.block_sums * sizeof(Sum);
        void *const memory = call_.hooks->allocate(call_.hooks, staged_bytes + sum_bytes + staged_rows_ * sizeof(Row));
        if (!memory) {
            __atomic_store_n(&out_of_memory_, true, __ATOMIC_RELAXED);
            return;
        }
        // Both sizes are multiples of 64.
        task.staged = static_cast<Element *>(memory);
        task.sums = reinterpret_cast<Sum *>(static_cast<char *>(memory) + staged_bytes);
        task.rows = reinterpret_cast<Row *>(static_cast<char *>(memory) + staged_bytes + sum_bytes);
        Set::begin();
        Phase phase{};
        for (phase.row = 0; phase.row < code_.scale_h; phase.row++) {
            for (phase.column = 0; phase.column < code_.scale_w; phase.column++) {
                phase.rows = code_.rows[phase.row];
                phase.columns = code_.columns[phase.column];
                phase.steps = steps_of(phase.row, phase.column);
                Rows<Numbers> source(code_, call_, numbers_, begin_of(part, parts_, call_.num_tiles),
                                     begin_of(part + 1, parts_, call_.num_tiles));
                while (const int32_t count = source.take(phase, task.rows, staged_rows_)) {
                    const Blocks blocks = blocks_of(count);
                    for (int32_t block = 0; block < blocks.count; block++) {
                        for (int32_t row = blocks.begin(block); row < blocks.begin(block + 1); row++) {
                            source.stage(phase, task.rows[row],
                                         task.staged_block(block) + (row - blocks.begin(block)) * step_elements,
                                         code_.block_pixels * step_elements);
                        }
                    }
                    for (int32_t group = begin_of(split, splits_, groups_);
                         group < begin_of(split + 1, splits_, groups_); group++) {
                        multiply(phase, blocks, task, group);
                    }
                }
                phase.first_step += phase.steps;
                phase.index++;
            }
        }
        Set::end();
        call_.hooks->deallocate(call_.hooks, memory);
    }

    /** How rows are divided among blocks. */
    struct Blocks {
        int32_t count, rows, full;  ///< `full`: rows of each block but the last; 0: all have about as many.

        int32_t begin(int32_t block) const {
            return full == 0 ? begin_of(block, count, rows) : least(int64_t{block} * full, rows);
        }
    };
    Blocks blocks_of(int32_t rows) const {
        return {divide_up(rows, code_.block_pixels), rows, Set::balances ? 0 : code_.block_pixels};
    }
    /** Multiplies all staged blocks with one group of output channels, and stores the results. */
    void multiply(const Phase &phase, const Blocks &blocks, const Task &task, int32_t group) const {
        const int32_t first = group * (code_.block_channels / vector_channels), channel = first * vector_channels;
        const int32_t vectors = least(code_.block_channels / vector_channels, weights_.dim[2].extent - first);
        const int32_t padded = vectors * vector_channels, channels = least(padded, out_channels_ - channel);
        const int64_t weight_block = weights_.dim[2].stride;
        const auto *const weights =
            static_cast<const Weight *>(weights_.data) + first * weight_block + int64_t{phase.first_step} * weight_step;
        const int32_t staged_step = code_.block_pixels * step_elements;
        const int32_t chunk = Set::chunk_steps == 0 ? most(phase.steps, 1) : Set::chunk_steps;
        int32_t step = 0;
        // Once without any step, for a phase that reads nothing.
        do {
            const int32_t steps = least(chunk, phase.steps - step);
            for (int32_t block = 0; block < blocks.count; block++) {
                if (step + steps >= phase.steps) {
                    // What the block stores arrives in the cache meanwhile.
                    for (int32_t i = blocks.begin(block); i < blocks.begin(block + 1); i++) {
                        __builtin_prefetch(numbers_.output(task.rows[i], channel), 1);
                    }
                }
                Set::multiply({task.staged_block(block) + int64_t{step} * staged_step, staged_step,
                               weights + int64_t{step} * weight_step, weight_block, steps},
                              blocks.begin(block + 1) - blocks.begin(block), vectors, step != 0, task.sums_of(block));
            }
            step += steps;
        } while (step < phase.steps);
        for (int32_t block = 0; block < blocks.count; block++) {
            const Sum *sums = task.sums_of(block);
            for (int32_t i = blocks.begin(block); i < blocks.begin(block + 1); i++, sums += padded) {
                numbers_.store(phase, task.rows[i], sums, channel, channels);
            }
        }
    }

    const distile_dot_product_code &code_;
    const distile_kernel_call &call_;
    const Numbers numbers_;
    const distile_array &weights_;
    int32_t out_channels_, staged_rows_, groups_, splits_, parts_, most_steps_ = 0;
    bool out_of_memory_ = false;
};

}  // namespace distile::dot_product

#endif
