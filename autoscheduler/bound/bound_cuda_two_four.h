/** \file
 * The terms of the bound for weights of the pattern 2:4 on NVIDIA GPUs (kernels/cuda_two_four). A sink gets them:
 * time(name, us), count(name, value), launches(us). schedules/cuda_two_four_space.h describes what a block does.
 */
#ifndef DISTILE_BOUND_CUDA_TWO_FOUR_H
#define DISTILE_BOUND_CUDA_TWO_FOUR_H

#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/bound_sinks.h"
#include "autoscheduler/bound/knobs.h"
#include "kernels/cuda_two_four/arguments.h"
#include <algorithm>
#include <cmath>

namespace distile {

DISTILE_BOUND_KNOBS(CudaTwoFourKnobs, tile_h, tile_w, pixels, channels, splits);

/** What blocks cost. Fitted to the times of linear layers in float16 on an NVIDIA H200 of 256 to 4096 tokens, with all
 * blocks and up to 6 splits: 102 times of code for 9.0, within 11 %, and 95 of code for 8.0, within 9 %. The rate of
 * the latter is of 1024 multiply-adds in a cycle. These logs are of earlier versions of the code and are not kept. */
struct TwoFourCosts {
    double rate;         /**< The part of the tensor cores' peak rate that code reaches: twice that of all weights. */
    double l2_bytes;     /**< Bytes of pixels and weights that reach a multiprocessor in a cycle. */
    double l2_latencies; /**< Latencies of L2 from the copy of a step to its multiplication. */
    double start_us;     /**< What a call takes besides an empty launch: to list the pixels, and to wait for them. */
    double wave_us;      /**< To fill the pipeline, and to store the sums. */
    double parts_us;     /**< To write and read a megabyte of sums. */
};
constexpr TwoFourCosts two_four_sm90_costs = {.78, 134, 16.5, 2.8, 2.9, .34},
                       two_four_sm80_costs = {.59, 60, 10, 2.9, 1.9, .42};

template<typename Sink>
void add_cuda_two_four_terms(const Workload &workload, const CudaTwoFourKnobs &theta, int64_t tiles, Sink &sink) {
    const Problem &problem = workload.problem;
    const DeviceProfile &device = workload.device;
    const bool is_sm90 = *problem.sparse_cores == TensorCores::Sm90;
    const TwoFourCosts &costs = is_sm90 ? two_four_sm90_costs : two_four_sm80_costs;
    const cuda_two_four::Block block{is_sm90 ? cuda_two_four::Cores::Sm90 : cuda_two_four::Cores::Sm80, theta.pixels,
                                     theta.channels};
    // Clusters are whole, and so are blocks.
    const double pixels = static_cast<double>(tiles) * theta.tile_h * theta.tile_w, splits = theta.splits,
                 cluster = block.cluster(),
                 outputs = std::ceil(pixels / (theta.pixels * cluster)) * cluster *
                           std::ceil(static_cast<double>(problem.out_channels) / theta.channels),
                 blocks = outputs * splits;
    const double taps = static_cast<double>(problem.kernel_h) * problem.kernel_w,
                 all_steps = taps * std::ceil(static_cast<double>(problem.in_channels) / DISTILE_TWO_FOUR_COLUMNS),
                 steps = std::ceil(all_steps / splits);
    const double resident = block.resident(), everywhere = resident * workload.threads,
                 waves = std::ceil(blocks / everywhere);
    // The steps that follow each other in a block, and those of a multiprocessor.
    const double depth = waves * steps, last = std::ceil((blocks - (waves - 1) * everywhere) / workload.threads),
                 block_steps = ((waves - 1) * resident + last) * steps;

    // No time hides behind another altogether.
    sink.overlap_in_part();
    const MemoryLevel &l2 = device.memory[1], &dram = device.memory[2];
    const double us_per_cycle = 1 / (device.ghz * 1e3);
    const double multiply_adds = static_cast<double>(theta.pixels) * theta.channels * DISTILE_TWO_FOUR_COLUMNS;
    const double rate = 2.0 * std::max(1, device.tensor16_per_cycle) * costs.rate;
    sink.time("multiply", block_steps * multiply_adds / rate * us_per_cycle);
    // Blocks of a cluster share what they copy of the weights.
    const double step_bytes = block.input_bytes() + double{DISTILE_TWO_FOUR_UNIT_BYTES} * block.units() / cluster;
    sink.time("L2", block_steps * step_bytes / costs.l2_bytes * us_per_cycle);
    sink.time("latency", depth * costs.l2_latencies * l2.latency_ns * 1e-3 / block.stages());
    constexpr double value_bytes = 2;
    const double weight_bytes = all_steps * DISTILE_TWO_FOUR_UNIT_BYTES * problem.out_channels / DISTILE_TWO_FOUR_ROWS;
    const double unique = input_footprint(workload, theta.tile_h, theta.tile_w, pixels) +
                          pixels * problem.out_channels * value_bytes + weight_bytes;
    sink.time("global", unique / (dram.gb_per_s * 1e3));
    const double part_megabytes = splits > 1 ? 2e-6 * blocks * static_cast<double>(block.part_bytes()) : 0;
    sink.launches(device.launch_us + costs.start_us + waves * costs.wave_us + part_megabytes * costs.parts_us);

    sink.count("blocks", blocks);
    sink.count("steps", steps);
    sink.count("resident", resident);
    sink.count("waves", waves);
    sink.count("idle", 1 - blocks / (waves * everywhere));
    sink.count("tail", std::ceil(pixels / theta.pixels) * theta.pixels / pixels);
}

}  // namespace distile

#endif
