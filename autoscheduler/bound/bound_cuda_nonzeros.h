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

DISTILE_BOUND_KNOBS(CudaNonzeroKnobs, tile_h, tile_w, pixels, channels);

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
    const double blocks = pixel_blocks * sections.count() * section_parts;

    // What a block stages and multiplies, in columns of its pixels.
    const double taps = static_cast<double>(problem.kernel_h) * problem.kernel_w;
    const double quads = taps * std::ceil(sections.inputs() / 4.0), columns = 4 * quads;
    const double chunks = std::ceil(columns / DISTILE_CUDA_CHUNK_COLUMNS),
                 stages = std::ceil(chunks * pixels / cuda_nonzeros::most_pixels);
    const double rows = std::min<double>(channels, sections.padded_outputs());
    const double nonzeros = problem.nonzeros * taps * problem.in_channels * sections.outputs() / section_parts;
    // A row has a pair that is not full in every other chunk.
    const double multiplied = nonzeros + rows * std::min(chunks, nonzeros / rows) / 2;

    // A multiprocessor moves 32 numbers in a cycle between its warps and shared memory or the cache: staged numbers
    // twice; for each nonzero its column, its value and its place, a value for all lanes at once; and the output.
    constexpr double loads_of_weight = .5, moves_of_output = 6;
    const double moves = 2 * columns * lane_pixels + multiplied * (lane_pixels + loads_of_weight) +
                         moves_of_output * channels * lane_pixels;
    const double threads = cuda_nonzeros::warps_of(theta.channels) * warp;
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
    const double block_bytes = columns * pixels * problem.bytes_per_element + 8 * multiplied;
    sink.time("L2", blocks * block_bytes / (l2.gb_per_s * 1e3));
    const double unique = input_footprint(workload, theta.tile_h, theta.tile_w, all_pixels) +
                          8 * problem.nonzeros * taps * problem.in_channels * problem.out_channels +
                          all_pixels * problem.out_channels * problem.bytes_per_element;
    sink.time("global", unique / (dram.gb_per_s * 1e3));
    // A block waits for the list and for the mask before it reads its pixels, and for its last results.
    sink.launches(device.launch_us + 4 * l2.latency_ns * 1e-3);

    sink.count("blocks", blocks);
    sink.count("threads", threads);
    sink.count("stages", stages);
    sink.count("resident", resident);
    sink.count("rounds", rounds);
    sink.count("moves", moves);
    sink.count("idle", 1 - blocks / (rounds * everywhere));
    sink.count("tail", pixel_blocks * pixels / all_pixels);
}

}  // namespace distile

#endif
