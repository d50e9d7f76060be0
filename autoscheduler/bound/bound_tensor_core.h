/** \file
 * The terms of the bound for the templates in kernels/tensor_core. A sink gets them: time(name, us),
 * count(name, value), launches(us). schedules/tensor_core_space.h describes what a block does.
 */
#ifndef DISTILE_BOUND_TENSOR_CORE_H
#define DISTILE_BOUND_TENSOR_CORE_H

#include "autoscheduler/bound/bound_sinks.h"
#include "autoscheduler/bound/knobs.h"
#include "kernels/tensor_core/arguments.h"
#include "schedules/tensor_core_space.h"
#include <algorithm>
#include <cmath>

namespace distile {

DISTILE_BOUND_KNOBS(TensorCoreKnobs, tile_h, tile_w, block_pixels, block_channels, stages, splits, balanced);

/** What blocks cost beside multiplying. All of these constants but sm80_costs are fitted together to times of an NVIDIA
 * H200 that are in data/plans: those for 132 threads of the masked variants of convolutions and linear layers,
 * *_sm90.json, 5620 times of 99 variants in TF32, 16 bits and 8 bits. */
struct TensorCoreCosts {
    double rate;         /**< The part of the tensor cores' peak rate that code reaches. */
    double row_bytes;    /**< Bytes of gathered rows that a multiprocessor copies in a cycle. */
    double l2_bytes;     /**< Bytes of rows and weights that reach it in a cycle. */
    double l2_latencies; /**< Latencies of L2 from the copy of a step to its multiplication. */
    double start_us;     /**< What a call takes besides an empty launch: to list the pixels. */
};
constexpr TensorCoreCosts sm90_costs = {.7, 80, 128, 4.5, 2};
/** Fitted to 2734 times of 42 variants in TF32 and float16 on an H200, of earlier code for 9.0; later times replaced
 * them in the plans. The log of the rate is not kept, and no plan *_sm80.json has measured times yet. */
constexpr TensorCoreCosts sm80_costs = {.6, 40, 64, 6, 1.4};
constexpr double wave_us = 1.7;    /**< To fill the pipeline, and to store the sums. */
constexpr double cluster_us = 1.3; /**< For the blocks of a cluster to add their sums, in each wave. */
/** What blocks take that share the last items: each time, and in addition for every `sums` sums of a block. */
constexpr double sharing_us = 4.2, sums_us = 5.3, sums = 128 * 256;
/** The part of the multiprocessors that larger clusters can use: a cluster lies in one part of the chip. */
constexpr double in_clusters = .94;

template<typename Sink>
void add_tensor_core_terms(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm, Sink &sink) {
    const TensorCoreKnobs theta = TensorCoreKnobs::of(knobs.values);
    const int tile_h = theta.tile_h, tile_w = theta.tile_w, stages = theta.stages, splits = theta.splits;
    const bool balanced = theta.balanced != 0;
    const double block_pixels = theta.block_pixels, block_channels = theta.block_channels;
    const Problem &problem = workload.problem;
    const DeviceProfile &device = workload.device;
    const TensorCoreCosts &costs = *problem.tensor_cores == TensorCores::Sm90 ? sm90_costs : sm80_costs;
    const TensorCoreBlock block = tensor_core_block(*problem.tensor_cores,
                                                    {{"block_pixels", theta.block_pixels},
                                                     {"block_channels", theta.block_channels},
                                                     {"stages", stages},
                                                     {"splits", splits}},
                                                    problem.bytes_per_element == 1);
    const auto resident = static_cast<double>(block.per_multiprocessor);
    const double multiprocessors = workload.threads;

    // Items are blocks of the result. As many as there are clusters are computed at once, in waves.
    const double pixels = static_cast<double>(tiles) * tile_h * tile_w;
    const double items =
        std::ceil(pixels / block_pixels) * static_cast<double>(channel_blocks(problem, theta.block_channels));
    const double elements = static_cast<double>(problem.kernel_h) * problem.kernel_w * group_panels(problem).inputs;
    const double steps = std::ceil(std::ceil(elements * problem.bytes_per_element / 128) / splits);
    const double usable = splits > 2 ? in_clusters : 1;
    const double room = resident * multiprocessors * usable / splits;
    // A cluster for which there is no room loses as much as it lacks.
    const double clusters = room < 1 ? room : std::floor(room);
    const double full_waves = std::floor(items / clusters), last_items = items - full_waves * clusters;
    const double waves = full_waves + (last_items > 0 ? 1 : 0);
    // The steps that follow each other in a block, and those of a multiprocessor. In the last wave, often the only one,
    // it has fewer blocks; or all share that wave and the one before, where this saves more than it costs.
    double depth = full_waves * steps, block_steps = full_waves * resident * steps;
    double exchange_us = splits > 1 ? waves * cluster_us : 0;
    if (balanced && last_items > 0 && (clusters - last_items) * steps > tensor_core::sharing_steps * clusters) {
        const double whole_waves = std::max(0.0, full_waves - 1), left = items - whole_waves * clusters;
        const double sharers =
            std::min(clusters, left * std::min<double>(tensor_core::most_sharers, std::ceil(steps / 4)));
        const double share = std::ceil(left * steps / sharers);
        depth = whole_waves * steps + share;
        block_steps = whole_waves * resident * steps + std::min(resident, std::ceil(sharers / multiprocessors)) * share;
        exchange_us = sharing_us + sums_us * block_pixels * block_channels / sums;
    } else if (last_items > 0) {
        depth += steps;
        block_steps += std::min(resident, std::ceil(last_items * splits / multiprocessors)) * steps;
    }

    // No time hides behind another altogether.
    sink.overlap_in_part();
    const MemoryLevel &fast = device.memory[0], &l2 = device.memory[1], &dram = device.memory[2];
    const double us_per_cycle = 1 / (device.ghz * 1e3);
    const int rate = problem.bytes_per_element == 4   ? device.tensor32_per_cycle
                     : problem.bytes_per_element == 2 ? device.tensor16_per_cycle
                                                      : 2 * device.tensor16_per_cycle;
    const double multiply_adds = block_pixels * block_channels * 128 / problem.bytes_per_element;
    sink.time("multiply", block_steps * multiply_adds / (std::max(1, rate) * costs.rate) * us_per_cycle);
    const double row_bytes = block_pixels * 128, step_bytes = row_bytes + block_channels * 128;
    sink.time("rows", block_steps * row_bytes / costs.row_bytes * us_per_cycle);
    sink.time("L2", block_steps * step_bytes / costs.l2_bytes * us_per_cycle);
    // Every 64 rows read the weights again.
    const double read_bytes = row_bytes + std::ceil(block_pixels / 64) * block_channels * 128;
    sink.time("shared", block_steps * (step_bytes + read_bytes) / (fast.gb_per_s * 1e3));
    sink.time("latency", depth * costs.l2_latencies * l2.latency_ns * 1e-3 / stages);
    const double unique = input_footprint(workload, tile_h, tile_w, pixels) +
                          (elements + pixels) * problem.out_channels * problem.bytes_per_element;
    sink.time("global", unique / (dram.gb_per_s * 1e3));
    sink.launches(device.launch_us + costs.start_us + waves * wave_us + exchange_us);

    sink.count("items", items);
    sink.count("steps", steps);
    sink.count("threads", static_cast<double>(block.threads));
    sink.count("shared_bytes", static_cast<double>(block.shared_bytes));
    sink.count("resident", resident);
    sink.count("waves", waves);
    sink.count("idle", 1 - items / (waves * clusters));
    sink.count("tail", std::ceil(pixels / block_pixels) * block_pixels / pixels);
}

}  // namespace distile

#endif
