/** \file
 * The terms of the bound for nonzero weights on NVIDIA GPUs (kernels/cuda_nonzeros). A sink gets them: time(name, us),
 * count(name, value), launches(us). schedules/cuda_nonzeros_space.h describes what a block does.
 */
#ifndef DISTILE_BOUND_CUDA_NONZEROS_H
#define DISTILE_BOUND_CUDA_NONZEROS_H

#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/knobs.h"
#include "kernels/cuda_nonzeros/arguments.h"
#include "schedules/cuda_nonzeros_space.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace distile {

DISTILE_BOUND_KNOBS(CudaNonzeroKnobs, tile_h, tile_w, pixels, channels, splits);

template<typename Sink>
void add_cuda_nonzero_terms(const Workload &workload, const CudaNonzeroKnobs &theta, int64_t tiles, Sink &sink) {
    const Problem &problem = workload.problem;
    const DeviceProfile &device = workload.device;
    const ChannelSections sections = nonzero_sections(problem);
    const double pixels = theta.pixels, channels = theta.channels, warp = cuda_nonzeros::lanes,
                 lane_pixels = pixels / warp;
    const double all_pixels = static_cast<double>(tiles) * theta.tile_h * theta.tile_w;
    const double pixel_blocks = std::ceil(all_pixels / pixels);
    const double section_parts = std::ceil(sections.padded_outputs() / channels);
    const double splits = theta.splits, outputs = pixel_blocks * sections.count() * section_parts,
                 blocks = outputs * splits;

    // What a block stages and multiplies, in columns of its pixels.
    const double taps = static_cast<double>(problem.kernel_h) * problem.kernel_w;
    const double quads = taps * std::ceil(sections.inputs() / 4.0), columns = 4 * quads / splits;
    const double chunks = std::ceil(columns / DISTILE_CUDA_CHUNK_COLUMNS),
                 stages = std::ceil(chunks * pixels / cuda_nonzeros::most_pixels);
    const double rows = std::min<double>(channels, sections.padded_outputs());
    const double nonzeros = problem.nonzeros * taps * problem.in_channels * sections.outputs() / section_parts / splits;
    // A row has a pair that is not full in every other chunk.
    const double multiplied = nonzeros + rows * std::min(chunks, nonzeros / rows) / 2;

    // A multiprocessor moves 32 numbers in a cycle between its warps and shared memory or the cache: staged numbers
    // twice; for each nonzero its column, and its value and its place for all lanes that multiply the row; and the
    // output, which blocks that share it write and read before.
    constexpr double moves_of_weight = 1.2, moves_of_output = 6, moves_of_part = 3;
    const double rows_at_once = cuda_nonzeros::most_pixels / pixels;
    const double moves = 2 * columns * lane_pixels + multiplied * (lane_pixels + moves_of_weight / rows_at_once) +
                         (moves_of_output + (splits > 1 ? moves_of_part * 2 : 0)) * channels * lane_pixels;
    const double threads = cuda_nonzeros::warps_of(theta.pixels, theta.channels) * warp;
    const int64_t shared_bytes = cuda_nonzeros::shared_bytes(theta.pixels, theta.channels);
    constexpr int registers = 64;
    const double resident = std::max(1, occupancy(device, static_cast<int>(threads), registers, shared_bytes));
    const double everywhere = resident * workload.threads, rounds = std::ceil(blocks / everywhere);
    const double block_turns =
        (rounds - 1) * resident + std::ceil((blocks - (rounds - 1) * everywhere) / workload.threads);
    const double cycle_us = 1e-3 / device.ghz;
    const MemoryLevel &l2 = device.memory[1], &dram = device.memory[2];

    // Blocks that wait for what they stage leave the multiprocessor to the others, if there are any.
    const double stage_us = 2 * l2.latency_ns * 1e-3;
    const double moving = block_turns * moves * cycle_us,
                 waiting = block_turns * stages * stage_us / std::min(resident, block_turns / rounds);
    sink.time("shared", moving + waiting);
    sink.time("multiply", block_turns * multiplied * pixels / device.fma_per_cycle * cycle_us);
    const double part_bytes = splits > 1 ? 2 * sizeof(float) * channels * pixels : 0;
    const double block_bytes = columns * pixels * problem.bytes_per_element + 8 * multiplied + part_bytes;
    sink.time("L2", blocks * block_bytes / (l2.gb_per_s * 1e3));
    const double unique = input_footprint(workload, theta.tile_h, theta.tile_w, all_pixels) +
                          8 * problem.nonzeros * taps * problem.in_channels * problem.out_channels +
                          all_pixels * problem.out_channels * problem.bytes_per_element;
    sink.time("global", unique / (dram.gb_per_s * 1e3));
    // A block waits for the list before it reads its pixels, and its last results are waited for; and blocks that share
    // an output wait for what others have written. On an H200 a wait is as long as two of the L2's latencies.
    const double waits = splits > 1 ? 14 : 8;
    sink.launches(device.launch_us + waits * l2.latency_ns * 1e-3);

    sink.count("blocks", blocks);
    sink.count("threads", threads);
    sink.count("stages", stages);
    sink.count("outputs", outputs);
    sink.count("resident", resident);
    sink.count("rounds", rounds);
    sink.count("moves", moves);
    sink.count("idle", 1 - blocks / (rounds * everywhere));
    sink.count("tail", pixel_blocks * pixels / all_pixels);
}

}  // namespace distile

#endif
