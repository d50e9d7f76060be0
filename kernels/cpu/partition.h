/** \file
 * How a call is cut into tasks: parts of its tiles times parts of its output channels.
 */
#ifndef DISTILE_DOT_PRODUCT_PARTITION_H
#define DISTILE_DOT_PRODUCT_PARTITION_H

#include <cstdint>

namespace distile::dot_product {

/** What a call multiplies. */
struct WorkShape {
    int32_t tiles, tile_pixels;
    int32_t block_pixels, staged_blocks;
    int32_t blocks, block_vectors; /**< Blocks of output channels, and vectors of 16 channels in a block. */
    int32_t steps;                 /**< Steps of the reduction, on average over the phases. */
    bool shares_staging;           /**< All blocks of output channels read the same. */
    int32_t threads, least_splits;
};

/** How instructions compute. Times are those to multiply a unit of pixels with a vector of output channels, a step. */
struct CostModel {
    /** Pixels of a unit: blocks are computed in whole units. 0: a block is a unit, and with fewer pixels it takes less
     * time. */
    int32_t unit_pixels;
    float beginning; /**< To begin a task: memory, and a walk over its tiles. */
    float staging;   /**< To stage a step of a unit. */
    float waiting;   /**< To wait for the weights of a step and vector. */
    float ending;    /**< To store the results of a unit and a vector. */
};

/** The costs of tiles, of vector registers, and of registers for columns (columns.h). The costs of tiles were fitted to
 * 109 partitions of three convolutions by 16 threads, and are 15 % off on average. The costs of split numbers, with
 * four products each, are counted in instructions. */
constexpr CostModel in_tiles{16, 180, 3, .2F, 4}, in_split_tiles{16, 45, 4, 3.5F, 1}, in_registers{0, 80, .5F, .4F, 2},
    in_columns{0, 80, 3, .4F, 2};

/** `Isa` as in Epilogue. */
template<class Isa> struct Partition {
    int32_t parts;  /**< Parts of the tiles. */
    int32_t splits; /**< Parts of the output channels. */
    int32_t unit;   /**< A part begins at a multiple of `unit` tiles. */

    /** Minimizes the time of a call. Threads take tasks one by one. The more cores, the more their speeds differ, so
     * the last task may begin when the others end: a call takes the mean of all threads and more than a task. */
    static Partition best(const WorkShape &work, const CostModel &cost_model) {
        const bool aligns = cost_model.unit_pixels % work.tile_pixels == 0 && cost_model.unit_pixels > 0;
        const int32_t unit_pixels = cost_model.unit_pixels > 0 ? cost_model.unit_pixels : work.block_pixels;
        const int32_t unit = aligns ? cost_model.unit_pixels / work.tile_pixels : 1;
        const int64_t pixels = int64_t{work.tiles} * work.tile_pixels;
        const float units = static_cast<float>(pixels) / static_cast<float>(unit_pixels);
        const auto all_units = static_cast<int32_t>((pixels + unit_pixels - 1) / unit_pixels);
        const int32_t most_parts = divide_up(work.tiles, unit);
        const int32_t staged = most(work.staged_blocks * work.block_pixels / unit_pixels, 1);
        const int32_t most_splits = least(work.blocks, most(work.threads, work.least_splits));
        const float uneven = work.threads <= 2 ? 0 : work.threads >= 6 ? 1.6F : (work.threads - 2) * .4F;
        constexpr int64_t most_tasks = 1 << 30;
        Partition found{1, 1, unit};
        float least_time = -1;
        for (int32_t splits = least(work.least_splits, work.blocks); splits <= most_splits;
             splits = next_splits(work.blocks, splits)) {
            for (int32_t size = 1; size <= staged; size += size < 8 ? 1 : size / 8) {
                const int32_t parts = least(divide_up(all_units, size), most_parts);
                const float part = cost_model.unit_pixels > 0 ? static_cast<float>(divide_up(all_units, parts))
                                                              : units / static_cast<float>(parts);
                const float mean = task_time(work, cost_model, units / static_cast<float>(parts),
                                             static_cast<float>(work.blocks) / static_cast<float>(splits)),
                            longest =
                                task_time(work, cost_model, part, static_cast<float>(divide_up(work.blocks, splits)));
                const int64_t tasks = int64_t{parts} * splits, rounds = (tasks + work.threads - 1) / work.threads;
                const float in_rounds = static_cast<float>(rounds) * longest,
                            flowing =
                                static_cast<float>(tasks) * mean / static_cast<float>(work.threads) + uneven * longest;
                const float time = in_rounds > flowing ? in_rounds : flowing;
                if (tasks <= most_tasks && (least_time < 0 || time < least_time)) {
                    least_time = time;
                    found = {parts, splits, unit};
                }
            }
        }
        return found;
    }

private:
    /** More splits, of fewer blocks each; they are worth nothing if the largest has as many. */
    static int32_t next_splits(int32_t blocks, int32_t splits) {
        const int32_t largest = divide_up(blocks, splits);
        return largest > 1 ? divide_up(blocks, largest - 1) : blocks + 1;
    }
    static int32_t least(int32_t a, int32_t b) {
        return a < b ? a : b;
    }
    static int32_t most(int32_t a, int32_t b) {
        return a > b ? a : b;
    }
    static int32_t divide_up(int32_t a, int32_t b) {
        return static_cast<int32_t>((int64_t{a} + b - 1) / b);
    }
    static float task_time(const WorkShape &work, const CostModel &cost_model, float units, float blocks) {
        const float vectors = blocks * static_cast<float>(work.block_vectors);
        const float staging = cost_model.staging * (work.shares_staging ? 1 : blocks);
        return cost_model.beginning + cost_model.ending * units * vectors +
               static_cast<float>(work.steps) * (units * (staging + vectors) + cost_model.waiting * vectors);
    }
};

}  // namespace distile::dot_product

#endif
