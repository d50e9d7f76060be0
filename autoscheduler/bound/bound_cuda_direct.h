/** \file
 * The terms of the bound on an NVIDIA GPU for a schedule without staging, of depthwise convolutions and small groups. A
 * sink gets them: time(name, us), count(name, value), launches(us). schedules/cuda_direct_space.h describes what a
 * thread does.
 */
#ifndef DISTILE_BOUND_CUDA_DIRECT_H
#define DISTILE_BOUND_CUDA_DIRECT_H

#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/knobs.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace distile {

DISTILE_BOUND_KNOBS(CudaDirectKnobs, tile_h, tile_w, block_pixels, block_channels, thread_pixels, thread_channels,
                    unroll);

template<typename Sink>
void add_cuda_direct_terms(const Workload &workload, const CudaDirectKnobs &theta, int64_t tiles, Sink &sink) {
    const int tile_h = theta.tile_h, tile_w = theta.tile_w;
    const int block_pixels = theta.block_pixels, block_channels = theta.block_channels;
    const int thread_pixels = theta.thread_pixels, thread_channels = theta.thread_channels, unroll = theta.unroll;
    const Problem &problem = workload.problem;
    const DeviceProfile &device = workload.device;
    const double bytes = problem.bytes_per_element, weight_bytes = problem.bytes_per_weight;

    const double all_pixels = static_cast<double>(tiles) * tile_h * tile_w;
    const double pixel_blocks = std::ceil(all_pixels / block_pixels);
    const double blocks = pixel_blocks * std::ceil(static_cast<double>(problem.out_channels) / block_channels);
    const int threads = block_pixels / thread_pixels * (block_channels / thread_channels), warps = threads / 32;
    const double taps = static_cast<double>(problem.in_channels) * problem.kernel_h * problem.kernel_w;

    // Registers for the sums, for the operands of a tap, and for addresses.
    const int registers = round_up(2 * thread_pixels * thread_channels + thread_channels + 10 * thread_pixels + 24, 8);
    const int resident = std::max(1, occupancy(device, threads, std::min(registers, 255), 0));
    const double everywhere = static_cast<double>(resident) * device.cores;
    const double rounds = std::ceil(blocks / everywhere);
    const double block_turns = (rounds - 1) * resident + std::ceil((blocks - (rounds - 1) * everywhere) / device.cores);

    // Every byte once from DRAM. Each tap of each pixel passes through the nearest cache, whose memory is the shared
    // one's, and so do its weights, once for the pixels of a thread; neighbouring blocks meet in L2.
    const MemoryLevel &fast = device.memory[0], &l2 = device.memory[1], &dram = device.memory[2];
    const double weights = taps * problem.out_channels * weight_bytes;
    const double output = all_pixels * problem.out_channels * bytes;
    const double unique = input_footprint(workload, tile_h, tile_w, all_pixels) + weights + output;
    const double block_weights = taps * block_channels * weight_bytes;
    const double block_share = static_cast<double>(block_channels) / problem.out_channels;
    const double block_input = block_share * input_footprint(workload, tile_h, tile_w, block_pixels);
    sink.time("global", unique / (dram.gb_per_s * 1e3));
    sink.time("L2", (blocks * (block_input + block_weights) + output) / (l2.gb_per_s * 1e3));
    const double thread_bytes = taps * thread_channels * (thread_pixels * bytes + weight_bytes);
    sink.time("shared", block_turns * threads * thread_bytes / (fast.gb_per_s * 1e3));

    // Instructions of a warp: multiply-adds, loads of 16 bytes, a conversion for each narrow value, and the places of
    // its pixels, which are found again in every loop that is not unrolled.
    const double multiply_adds = taps * thread_pixels * thread_channels;
    const double loads = thread_bytes / 16;
    const double conversions = bytes < 4 ? multiply_adds : 0;
    const double unrolled =
        (unroll == 0 ? 1 : problem.kernel_w) * static_cast<double>(unroll == 2 ? problem.kernel_h : 1);
    const double places = thread_pixels * (8 * taps / unrolled + 2 * taps + 30);
    const double warps_at_once = std::ceil(block_turns * warps / 4) * 4;
    sink.time("compute", device.alpha_us * (multiply_adds + loads + conversions + places) * warps_at_once +
                             rounds * device.gamma_us);
    // A thread waits for the list, its pixel and its taps, one after the other.
    sink.time("latency", rounds * 3 * l2.latency_ns * 1e-3);
    sink.launches(device.launch_us);

    sink.count("blocks", blocks);
    sink.count("threads", threads);
    sink.count("registers", registers);
    sink.count("resident", resident);
    sink.count("rounds", rounds);
    sink.count("idle", 1 - blocks / (rounds * everywhere));
    sink.count("unique_bytes", unique);
    sink.count("operations", multiply_adds);
    sink.count("other_operations", loads + conversions + places);
    sink.count("tail", pixel_blocks * block_pixels / all_pixels);
}

}  // namespace distile

#endif
