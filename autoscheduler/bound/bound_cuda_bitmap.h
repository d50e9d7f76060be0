/** \file
 * The terms of the bound for a bitmap of weights on NVIDIA GPUs (kernels/cuda_bitmap). A sink gets them: time(name,
 * us), count(name, value), launches(us). schedules/cuda_bitmap_space.h describes what a block does.
 */
#ifndef DISTILE_BOUND_CUDA_BITMAP_H
#define DISTILE_BOUND_CUDA_BITMAP_H

#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/knobs.h"
#include "kernels/cuda_bitmap/arguments.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace distile {

DISTILE_BOUND_KNOBS(CudaBitmapKnobs, tile_h, tile_w, pixels, channels, splits, ahead);

template<typename Sink>
void add_cuda_bitmap_terms(const Workload &workload, const CudaBitmapKnobs &theta, int64_t tiles, Sink &sink) {
    const Problem &problem = workload.problem;
    const DeviceProfile &device = workload.device;
    const double all_pixels = static_cast<double>(tiles) * theta.tile_h * theta.tile_w,
                 pixel_blocks = std::ceil(all_pixels / theta.pixels),
                 channel_blocks = std::ceil(static_cast<double>(problem.out_channels) / theta.channels);
    const double splits = theta.splits, outputs = pixel_blocks * channel_blocks, blocks = outputs * splits;

    // A warp multiplies units of 16 x 128 weights, one after the other.
    constexpr double lanes = cuda_bitmap::lanes, unit_weights = DISTILE_BITMAP_ROWS * DISTILE_BITMAP_COLUMNS;
    const double units = std::ceil(static_cast<double>(problem.in_channels) / DISTILE_BITMAP_COLUMNS),
                 parts = cuda_bitmap::parts_of(theta.channels), warp_units = std::ceil(units / splits / parts);
    // Granules that the lane with most nonzeros of a unit has.
    const double lane_weights = unit_weights / lanes, mean = lane_weights * problem.nonzeros;
    const double granules =
        std::min(lane_weights, mean + 2 * std::sqrt(mean * (1 - problem.nonzeros))) / DISTILE_BITMAP_GRANULE;
    // Instructions of a warp for a unit: those of its pairs, its granules, its products, of the unit itself, and of
    // another that it fetches early, which on an H200 gained nothing.
    constexpr double of_pair = 5.3, of_granule = 18, of_unit = 80, of_fetch = 25, pairs = 32, steps = 8, rate = 4,
                     column_tile = 8;
    const double column_tiles = theta.pixels / column_tile, instructions = of_pair * pairs + of_granule * granules +
                                                                           2 * steps * column_tiles + of_unit +
                                                                           (theta.ahead > 0 ? of_fetch : 0);
    // Passes of a warp over shared memory, each of which takes a cycle: pairs, values, and staged pixels.
    constexpr double passes_of_pixels = 2;
    const double passes = pairs + 5 * granules + steps * column_tiles * passes_of_pixels;
    const double products =
        steps * column_tiles * 16 * 8 * 16 / std::max(1.0, static_cast<double>(device.tensor16_per_cycle) / 2);
    const double warps = cuda_bitmap::warps, cycle_us = 1e-3 / device.ghz;
    constexpr int registers = 128;
    const double resident = std::max(1, occupancy(device, cuda_bitmap::threads, registers, cuda_bitmap::shared_bytes));
    const double everywhere = resident * workload.threads, rounds = std::ceil(blocks / everywhere);
    const double block_turns =
        (rounds - 1) * resident + std::ceil((blocks - (rounds - 1) * everywhere) / workload.threads);
    const double turns = block_turns * warps * warp_units;
    const MemoryLevel &l2 = device.memory[1], &dram = device.memory[2];
    sink.time("issue", turns * instructions / rate * cycle_us);
    sink.time("shared", turns * passes * cycle_us);
    sink.time("multiply", turns * products * cycle_us);
    // A warp waits for a unit's values while it multiplies the one before, and its instructions wait for each other.
    constexpr double cycles_of_instruction = 2;
    sink.time("latency",
              rounds * warp_units * (l2.latency_ns * 1e-3 + cycles_of_instruction * instructions * cycle_us));

    const double all_weights = static_cast<double>(problem.in_channels) * problem.out_channels;
    constexpr double value_bytes = 2, bit_bytes = 1.0 / 8;
    // Half of a lane's last granule is empty.
    const double padding = 1 + (mean > 0 ? DISTILE_BITMAP_GRANULE / 2.0 / std::max(mean, 1.0) : 0);
    const double weight_bytes = all_weights * (problem.nonzeros * value_bytes * padding + bit_bytes);
    const double input_bytes = units * DISTILE_BITMAP_COLUMNS * theta.pixels * value_bytes,
                 part_bytes = splits > 1 ? 2 * sizeof(float) * theta.channels * theta.pixels : 0;
    sink.time("L2", (weight_bytes * pixel_blocks + outputs * input_bytes + blocks * part_bytes) / (l2.gb_per_s * 1e3));
    sink.time("global", (weight_bytes + all_pixels * (problem.in_channels + problem.out_channels) * value_bytes) /
                            (dram.gb_per_s * 1e3));
    // Bits are waited for before values, and the last results; and blocks that share an output wait for what others
    // have written.
    const double waits = splits > 1 ? 12 : 6;
    sink.launches(device.launch_us + waits * l2.latency_ns * 1e-3);

    sink.count("blocks", blocks);
    sink.count("outputs", outputs);
    sink.count("units", warp_units);
    sink.count("resident", resident);
    sink.count("rounds", rounds);
    sink.count("passes", passes);
    sink.count("idle", 1 - blocks / (rounds * everywhere));
    sink.count("tail", pixel_blocks * theta.pixels / all_pixels);
}

}  // namespace distile

#endif
