/** \file
 * The terms of the bound on a CPU for a depthwise convolution, and for groups whose weights lie in diagonals. A sink
 * gets them as from add_cpu_terms().
 *
 * The loop nest, outermost first: tasks of the pixels (parallel), register tiles, groups of channels, the kernel, and
 * in a register tile the pixels and the vectors of channels (schedules/cpu_depthwise.cpp). The input has a zero border,
 * so that every tile is read in place.
 */
#ifndef DISTILE_BOUND_DEPTHWISE_H
#define DISTILE_BOUND_DEPTHWISE_H

#include "autoscheduler/bound/bound_cpu.h"
#include "autoscheduler/bound/knobs.h"
#include "schedules/cpu_space.h"
#include "schedules/depthwise_space.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace distile {

DISTILE_BOUND_KNOBS(DepthwiseKnobs, tile_h, tile_w, pixels, channels, tasks, unroll);

template<typename Sink>
void add_depthwise_terms(const Workload &workload, const DepthwiseKnobs &theta, int64_t tiles, Sink &sink) {
    const int tile_h = theta.tile_h, tile_w = theta.tile_w, pixels = theta.pixels, channels = theta.channels,
              unroll = theta.unroll;
    const Problem &problem = workload.problem;
    const DeviceProfile &device = workload.device;
    const double cycle_us = 1e-3 / device.ghz;
    const double bytes = problem.bytes_per_element, weight_bytes = problem.bytes_per_weight;

    // The tasks, as the schedule cuts them.
    const double all_pixels = static_cast<double>(tiles) * tile_h * tile_w;
    const double all_register_tiles = std::ceil(all_pixels / pixels);
    const double register_tiles = std::ceil(all_register_tiles / (static_cast<double>(workload.threads) * theta.tasks));
    const double tasks = std::ceil(all_register_tiles / register_tiles);
    const double rounds = std::ceil(tasks / workload.threads);
    const double cores = std::min<double>(tasks, workload.threads);

    // What a task computes. A tap adds one product to every sum of a register tile: it loads the inputs, which all
    // diagonals share, and its weights for all pixels.
    const double out_channels = round_up(problem.out_channels, problem.channel_block);
    const double vectors = static_cast<double>(channels) / problem.vector_lanes;
    const double taps = static_cast<double>(problem.kernel_h) * problem.kernel_w;
    const double steps = register_tiles * out_channels / channels * taps;
    const double diagonals = num_diagonals(problem);
    const double operations = steps * pixels * vectors * diagonals;
    const double unrolled = unroll == UnrollNothing ? 1 : unroll == UnrollRow ? problem.kernel_w : taps;
    const double spills =
        diagonals > 1 ? spilled_vectors(unrolled, problem.vector_registers -
                                                      vectors_held(pixels, static_cast<int>(diagonals)) * vectors)
                      : 0;
    const double loads = steps * ((pixels + diagonals) * vectors + spills);
    // A sum's diagonals are shuffled and added up.
    const double ends = register_tiles * out_channels / channels * pixels * vectors * 2 * (diagonals - 1);
    const double iterations = steps / unrolled;

    sink.time("fma", rounds * (device.alpha_us * (operations + ends) + device.gamma_us));
    // A sum waits for the one before it.
    sink.time("dependence", rounds * steps * device.fma_latency * cycle_us);
    // Every tap finds the address of every pixel, in a cycle as measured on a CPU, in a log that is not kept; the
    // addresses of an unrolled row alone cost twice as much.
    const double address_cycles = unroll == UnrollRow ? 2 : 1;
    sink.time("load", rounds * (loads / device.load_per_cycle + steps * pixels * address_cycles) * cycle_us);
    sink.time("store", rounds * steps * spills * cycle_us);
    sink.time("loop", rounds * iterations * 2 * cycle_us);

    // Bytes: the input and the output stream through, and the weights, which every register tile reads, stay.
    const double weights = taps * out_channels * diagonals * weight_bytes;
    const double task_pixels = register_tiles * pixels;
    const double task_input = input_footprint(workload, tile_h, tile_w, std::min(task_pixels, all_pixels));
    const double task_output = task_pixels * problem.out_channels * bytes;
    const double all_input = input_footprint(workload, tile_h, tile_w, all_pixels);
    const double all_output = all_pixels * problem.out_channels * bytes;
    const double core_data = weights + std::min(rounds * task_input, all_input) + rounds * task_output;

    const MemoryLevel &nearest = device.memory[0];
    sink.time(nearest.name.c_str(),
              rounds * steps * channels * (pixels * bytes + diagonals * weight_bytes) / (nearest.gb_per_s * 1e3));
    const auto core_traffic = [&](double room) {
        const double read = weights <= room ? weights : rounds * register_tiles * weights;
        return read + rounds * (task_input + task_output);
    };
    add_memory_times(device, cores, weights + all_input + all_output, core_data, core_traffic,
                     [&](const char *name, double us) { sink.time(name, us); });

    add_task_counts(workload,
                    {tasks, rounds, register_tiles, operations, loads, iterations, pixels * vectors * diagonals}, sink);
    sink.count("unrolled", unrolled * pixels * vectors * diagonals);
    sink.count("task_input_bytes", task_input);
    sink.count("weight_bytes", weights);
    sink.count("tail", all_register_tiles * pixels / all_pixels);
}

}  // namespace distile

#endif
