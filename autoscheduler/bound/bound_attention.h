/** \file
 * The terms of the bound for attention and its products on tensor cores. A sink gets them: time(name, us), count(name,
 * value), launches(us). schedules/attention_space.h describes what a block does.
 */
#ifndef DISTILE_BOUND_ATTENTION_H
#define DISTILE_BOUND_ATTENTION_H

#include "autoscheduler/bound/bound_sinks.h"
#include "autoscheduler/bound/knobs.h"
#include "kernels/tensor_core/arguments.h"
#include "schedules/attention_space.h"
#include <algorithm>
#include <cmath>

namespace distile {

DISTILE_BOUND_KNOBS(AttentionKnobs, block_rows, block_keys, stages, blocks, overlapped, ordered, balanced, warp_rows);

/** Fitted by hand to some times of 24 heads of 64 channels and 4096 tokens on an H200. Their log is not kept: of this
 * operator bench/results/h200-attention.json has the fastest variants alone, in bfloat16, float16 and, by code for 8.0,
 * TF32. */
struct AttentionCosts {
    static constexpr double powers = 16;  /**< Powers of 2 a cycle and multiprocessor, one for each score. */
    static constexpr double alone = 1.25; /**< Times as long if a multiprocessor has one or two groups of 64 rows. */
    static constexpr double sm80 = 1.5;   /**< Times as long without instructions of 9.0, with 8 warps. */
    static constexpr double tf32 = 1.4;   /**< Times as long in TF32 as in 16 bits, without instructions of 9.0. */
    static constexpr double narrow = 1.3; /**< Times as long in TF32 if a warp has 16 rows and not 32. */
    /** Times as long as with 8 warps on a multiprocessor. */
    static double of_warps(double warps) {
        return .58 + 3.4 / warps;
    }
    static constexpr double start_us = 3;                  /**< What a call takes besides an empty launch. */
    static constexpr double item_us = 1.2, share_us = 3.5; /**< To fill and empty the pipeline, and to share sums. */
};

template<typename Sink>
void add_attention_terms(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm, Sink &sink) {
    using Costs = AttentionCosts;
    const AttentionKnobs theta = AttentionKnobs::of(knobs.values);
    const double rows = theta.block_rows, keys = theta.block_keys, blocks = theta.blocks;
    const bool overlapped = theta.overlapped != 0, balanced = theta.balanced != 0, narrow = theta.warp_rows <= 16;
    const Problem &problem = workload.problem;
    const DeviceProfile &device = workload.device;
    const bool sm90 = *problem.tensor_cores == TensorCores::Sm90;
    const double room = std::max(1.0, blocks * workload.threads);

    const double images = std::max(1.0, static_cast<double>(workload.batch));
    const double image_rows = static_cast<double>(tiles) / images, columns = std::ceil(image_rows / rows);
    const double items = columns * images * problem.heads;
    const double steps = std::ceil(static_cast<double>(workload.keys) / keys);
    const double waves = std::ceil(items / room);
    double item_steps = waves * steps, shares = 0;
    // The last rows of an image fill a block in part, which then takes less time.
    const double last = .5 + .5 * std::ceil((image_rows - (columns - 1) * rows) / 64) * 64 / rows;
    const double filled = (columns - 1 + last) * images * problem.heads;
    if (balanced && filled * steps < (waves * steps - 3) * room) {
        item_steps = std::ceil(filled * steps / std::min(room, items * tensor_core::most_sharers));
        shares = 1;
    }

    sink.overlap_in_part();
    const double us_per_cycle = 1 / (device.ghz * 1e3);
    const double scores = item_steps * blocks * rows * keys;
    double slower = us_per_cycle;
    if (!sm90) {
        slower *= Costs::sm80 * Costs::of_warps(blocks * rows / (narrow ? 16 : 32));
        slower *= problem.bytes_per_element == 2 ? 1 : narrow ? Costs::tf32 * Costs::narrow : Costs::tf32;
    } else if (blocks * rows <= 128 || !overlapped) {
        slower *= Costs::alone;
    }
    const double padded = std::ceil(problem.head_dim / 32.0) * 32;
    const bool has_scores = problem.product != TokenProduct::Values,
               has_values = problem.product != TokenProduct::Scores;
    const bool is_whole = has_scores && has_values;
    const int rate = problem.bytes_per_element == 4 ? device.tensor32_per_cycle : device.tensor16_per_cycle;
    sink.time("multiply", scores * (is_whole ? 2 : 1) * padded / std::max(1, rate) * slower);
    sink.time("softmax", has_scores ? scores / Costs::powers * slower : 0);
    const MemoryLevel &dram = device.memory[2];
    // Products alone read or write all scores.
    const double tokens = (is_whole ? 2.0 : 1.0) * (static_cast<double>(tiles) + images * workload.keys);
    const double elements = tokens * problem.head_dim + (is_whole ? 0 : static_cast<double>(tiles) * workload.keys);
    sink.time("global", elements * problem.heads * problem.bytes_per_element / (dram.gb_per_s * 1e3));
    sink.launches(device.launch_us + Costs::start_us + waves * Costs::item_us + shares * Costs::share_us);

    sink.count("items", items);
    sink.count("steps", steps);
    sink.count("waves", waves);
}

}  // namespace distile

#endif
