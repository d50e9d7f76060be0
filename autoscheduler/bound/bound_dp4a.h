/** \file
 * The terms of the bound for dot products on NVIDIA GPUs (kernels/dp4a). A sink gets them: time(name, us),
 * count(name, value), launches(us). schedules/dot_product_space.h describes what a block does. Each phase is a launch,
 * of as many taps as the phase with the most has.
 */
#ifndef DISTILE_BOUND_DP4A_H
#define DISTILE_BOUND_DP4A_H

#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/knobs.h"
#include "schedules/dot_product_space.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace distile {

DISTILE_BOUND_KNOBS(Dp4aKnobs, tile_h, tile_w, pixels, channels);

template<typename Sink>
void add_dp4a_terms(const Workload &workload, const Dp4aKnobs &theta, int64_t tiles, Sink &sink) {
    const int tile_h = theta.tile_h, tile_w = theta.tile_w, pixels = theta.pixels, channels = theta.channels;
    const Problem &problem = workload.problem;
    const DeviceProfile &device = workload.device;
    const bool depthwise = is_depthwise_product(problem);
    const double phases = problem.phases(), all_pixels = static_cast<double>(tiles) * tile_h * tile_w;
    const ChannelSections sections = channel_sections(problem);

    // A block stages steps of 64 bytes and multiplies each. Threads have 4 or 8 pixels and 4 channels.
    constexpr double step_bytes = 64, step_groups = 16, thread_channels = 4, warp = 32;
    const double taps = static_cast<double>(problem.kernel_h) * problem.kernel_w;
    const double steps = depthwise ? std::ceil(problem.kernel_h / 4.0) * problem.kernel_w / step_groups
                                   : std::ceil(taps * sections.inputs() / step_bytes);
    const double pixel_blocks = std::ceil(all_pixels / phases / pixels);
    const double blocks =
        pixel_blocks * sections.count() * std::ceil(static_cast<double>(sections.padded_outputs()) / channels);
    const double thread_pixels = pixels == 32 ? 4 : 8, threads = pixels / thread_pixels * (channels / thread_channels);
    const double shared_bytes = 2 * step_bytes * (pixels + channels), registers = 128;
    const double resident = std::max(
        1.0, std::floor(std::min({device.max_threads / threads, static_cast<double>(device.max_blocks),
                                  device.shared_bytes / shared_bytes, device.registers / threads / registers})));
    const double everywhere = resident * workload.threads, rounds = std::ceil(blocks / everywhere);
    const double block_turns =
        (rounds - 1) * resident + std::ceil((blocks - (rounds - 1) * everywhere) / workload.threads);

    // A multiprocessor multiplies for half of its lanes at once, if it has warps for all of its four schedulers, and
    // spends about as long again on what it stages.
    const double cycle_us = 1e-3 / device.ghz;
    const double products = steps * step_groups * pixels * channels;
    const double warps = std::max(1.0, threads / warp) * std::min(resident, block_turns / rounds);
    const double lanes = device.fma_per_cycle / 2 * std::min(1.0, warps / 4);
    sink.time("multiply", phases * block_turns * products * 2 / lanes * cycle_us);
    const MemoryLevel &l2 = device.memory[1], &dram = device.memory[2];
    sink.time("L2", phases * blocks * steps * step_bytes * (pixels + channels) / (l2.gb_per_s * 1e3));
    sink.time("latency", phases * rounds * (steps + 3) * l2.latency_ns * 1e-3);
    const double unique = input_footprint(workload, tile_h, tile_w, all_pixels) +
                          (phases * steps * step_bytes + all_pixels) * problem.out_channels;
    sink.time("global", unique / (dram.gb_per_s * 1e3));
    sink.launches(phases * device.launch_us);

    sink.count("blocks", phases * blocks);
    sink.count("threads", threads);
    sink.count("steps", steps);
    sink.count("resident", resident);
    sink.count("rounds", rounds);
    sink.count("idle", 1 - blocks / (rounds * everywhere));
    sink.count("tail", pixel_blocks * pixels * phases / all_pixels);
}

}  // namespace distile

#endif
