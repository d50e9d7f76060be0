/** \file
 * The terms of the bound on a CPU. A sink gets them: time(name, us), count(name, value), launches(us).
 *
 * The loop nest, outermost first: parts of the output channels and tasks of the pixels (both parallel), groups of
 * channels, register tiles, the reduction, and in a register tile the pixels and the vectors of channels (schedules/
 * cpu.cpp). A float32 input has a zero border, and every tile is read in place; a task first copies an input of another
 * type. Where the output has phases, all of this is done once a phase, for as many taps as the phase with the most has.
 */
#ifndef DISTILE_BOUND_CPU_H
#define DISTILE_BOUND_CPU_H

#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/knobs.h"
#include "schedules/cpu_space.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace distile {

DISTILE_BOUND_KNOBS(CpuKnobs, tile_h, tile_w, pixels, channels, group, channel_splits, order, unroll);

/** The times of all levels of memory but the nearest. All cores together touch `data` bytes, and one core `core_data`.
 * Where these do not fit the level before, `core_traffic(room)` says how many bytes a core reads and writes. */
template<typename Time, typename Traffic> void add_memory_times(const DeviceProfile &device, double cores, double data,
                                                                double core_data, const Traffic &core_traffic,
                                                                const Time &time) {
    for (size_t i = 1; i < device.memory.size(); i++) {
        const MemoryLevel &inner = device.memory[i - 1], &level = device.memory[i];
        const double room = static_cast<double>(inner.bytes);
        double traffic = 0;  // The traffic of one core.
        if (inner.shared) {
            // All cores together fill it; what they share is in it once.
            traffic = data <= room ? 0 : data / cores;
        } else if (core_data > room) {
            traffic = core_traffic(room);
        }
        const double bandwidth = level.shared ? level.gb_per_s / cores : level.gb_per_s;
        time(level.name.c_str(), traffic / (bandwidth * 1e3));
    }
}

/** The pointers that a step of the reduction loads, as seen in the compiler's code: every pixel and unrolled tap, or
 * token, that is broadcast has a pointer of its own; without a register for it, it is loaded for every broadcast. */
inline double loaded_pointers(double broadcasts, double pointers) {
    constexpr double pointer_registers = 10;
    return broadcasts * std::max(0.0, 1 - pointer_registers / pointers);
}

/** What finds no register in a step of the reduction, and is stored and loaded again, as seen in the compiler's code:
 * the more steps are unrolled, the more weights and inputs are loaded ahead. */
inline double spilled_vectors(double unrolled, double free_registers) {
    const double loaded_ahead = 1 + 1.5 * std::log2(unrolled);
    return 3 * std::max(0.0, loaded_ahead - free_registers);
}

/** How a call is cut into tasks, and what a task computes. */
struct TaskCounts {
    double tasks, rounds, register_tiles, operations, loads, iterations, sums;
};

/** The time of a launch and the counts that all schedules on a CPU have. */
template<typename Sink> void add_task_counts(const Workload &workload, const TaskCounts &counts, Sink &sink) {
    sink.launches(workload.device.launch_us);
    sink.overlap_in_part();
    sink.count("tasks", counts.tasks);
    sink.count("rounds", counts.rounds);
    sink.count("idle", 1 - counts.tasks / (counts.rounds * workload.threads));
    sink.count("register_tiles", counts.register_tiles);
    sink.count("operations", counts.operations);
    sink.count("loads", counts.loads);
    sink.count("iterations", counts.iterations);
    sink.count("sums", counts.sums);
}

template<typename Sink> void add_cpu_terms(const Workload &workload, const CpuKnobs &theta, int64_t tiles, Sink &sink) {
    const int pixels = theta.pixels, channels = theta.channels, order = theta.order, unroll = theta.unroll;
    const Problem &problem = workload.problem;
    // In virtual pixels.
    const int tile_h = theta.tile_h / problem.scale_h, tile_w = theta.tile_w / problem.scale_w;
    const double phases = static_cast<double>(problem.scale_h) * problem.scale_w;
    const auto time = [&](const char *name, double us_of_phase) { sink.time(name, phases * us_of_phase); };
    const DeviceProfile &device = workload.device;
    const double cycle_us = 1e-3 / device.ghz;
    const double bytes = problem.bytes_per_element, weight_bytes = problem.bytes_per_weight;

    // The tasks of a phase, as the schedule cuts them.
    const double all_pixels = static_cast<double>(tiles) * tile_h * tile_w;
    const double all_register_tiles = std::ceil(all_pixels / pixels);
    const bool few = workload.threads <= few_threads;
    const double shares = few ? workload.threads : shares_of_many * workload.threads;
    const double out_channels = static_cast<double>(group_blocks(problem).count()) * problem.channel_block;
    const double channel_blocks = num_channel_tiles(problem, channels);
    const double most_blocks = std::max(std::floor(channel_blocks / theta.channel_splits), 1.0);
    const double shares_of_tile = std::ceil(shares / all_register_tiles);
    const double split_blocks =
        few ? most_blocks : std::clamp(std::floor(channel_blocks / shares_of_tile), 1.0, most_blocks);
    const double splits = std::ceil(channel_blocks / split_blocks);
    const double workers = std::max(std::floor(shares / splits), 1.0);
    const double share = std::ceil(all_register_tiles / workers);
    const double register_tiles = std::ceil(share / std::ceil(share / theta.group));
    const double tasks = std::ceil(all_register_tiles / register_tiles) * splits;
    const double rounds = std::ceil(tasks / workload.threads);
    const double cores = std::min<double>(tasks, workload.threads);

    // What a task computes. A step of the reduction adds one product to every sum of a register tile.
    const double vectors = static_cast<double>(channels) / problem.vector_lanes;
    const double split_channels = split_blocks * channels;
    const double channel_groups = split_channels / channels;
    const double reduction = static_cast<double>(problem.in_channels) * problem.kernel_h * problem.kernel_w;
    const double steps = register_tiles * channel_groups * reduction;
    const double operations = steps * pixels * vectors;
    // Beside it an iteration of the innermost loop counts and jumps.
    const double taps = order == 0 ? 1 : order == 1 ? problem.kernel_h * problem.kernel_w : problem.kernel_w;
    const double iterations = steps / (unroll * taps);

    // What the compiler makes of a step, as seen in its code. It loads the weights and broadcasts the inputs.
    const double pointer_loads = loaded_pointers(pixels, pixels * taps);
    const double spills = spilled_vectors(unroll * taps, problem.vector_registers - pixels * vectors - vectors);
    const double loads = steps * (vectors + pixels + pointer_loads + spills);
    // A small loop runs from the cache of decoded instructions.
    constexpr double decoded_instructions = 512, decoded_per_cycle = 6, decodes_per_cycle = 3;
    const double instructions = pixels * vectors + vectors + pixels + pointer_loads + 2 * spills;
    const bool fits = instructions * unroll * taps <= decoded_instructions;
    // A register tile begins with finding its pixels and ends with storing them.
    constexpr double pixel_cycles = 20;
    const double ends_us = register_tiles * channel_groups * pixels * pixel_cycles * cycle_us;

    time("fma", rounds * (device.alpha_us * operations + ends_us + device.gamma_us));
    // A sum waits for the one before it.
    time("dependence", rounds * steps * device.fma_latency * cycle_us);
    time("load", rounds * loads / device.load_per_cycle * cycle_us);
    time("store", rounds * steps * spills * cycle_us);
    time("decode", rounds * steps * instructions / (fits ? decoded_per_cycle : decodes_per_cycle) * cycle_us);
    time("loop", rounds * iterations * 2 * cycle_us);

    // Bytes, from the footprints of the loop nest. What fits into a level stays there; the rest is read again from the
    // next level.
    const double panel = reduction * channels * weight_bytes, split_weights = reduction * split_channels * weight_bytes;
    const double task_pixels = register_tiles * pixels;
    const double tile_input = input_footprint(workload, tile_h, tile_w, pixels);
    const double task_input = input_footprint(workload, tile_h, tile_w, std::min(task_pixels, all_pixels));
    const double task_output = task_pixels * split_channels * bytes;
    const double all_weights = reduction * out_channels * weight_bytes;
    const double all_input = input_footprint(workload, tile_h, tile_w, all_pixels);
    const double all_output = all_pixels * problem.out_channels * bytes;
    const double core_weights = std::min(rounds, splits) * split_weights;
    const double core_data = core_weights + std::min(rounds * task_input, all_input) + rounds * task_output;

    constexpr double sum_bytes = sizeof(float);
    const MemoryLevel &nearest = device.memory[0];
    time(nearest.name.c_str(),
         rounds * steps * (channels * weight_bytes + pixels * sum_bytes) / (nearest.gb_per_s * 1e3));
    const auto core_traffic = [&](double room) {
        const double weights = panel + tile_input <= room ? split_weights : register_tiles * split_weights;
        const double input = panel + task_input <= room ? task_input : channel_groups * task_input;
        // Consecutive tasks of a thread share a split of the weights that stays.
        const double read = split_weights + task_input <= room ? core_weights : rounds * weights;
        return read + rounds * (input + task_output);
    };
    add_memory_times(device, cores, all_weights + all_input + all_output, core_data, core_traffic, time);

    add_task_counts(workload, {tasks, rounds, register_tiles, operations, loads, iterations, pixels * vectors}, sink);
    sink.count("unrolled", unroll * taps * pixels * vectors);
    sink.count("panel_bytes", panel);
    sink.count("tile_input_bytes", tile_input);
    sink.count("task_input_bytes", task_input);
    sink.count("task_weight_bytes", split_weights);
    sink.count("tail", all_register_tiles * pixels / all_pixels);
}

}  // namespace distile

#endif
