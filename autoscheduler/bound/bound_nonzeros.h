/** \file
 * The terms of the bound for code of nonzero weights (schedules/nonzeros_space.h). A sink gets them as on any CPU
 * (bound_cpu.h).
 *
 * A task stages the channels of a block of pixels, chunk after chunk, in words of 32 bits, and multiplies each nonzero
 * weight, or quad of weights, with all vectors of the block.
 */
#ifndef DISTILE_BOUND_NONZEROS_H
#define DISTILE_BOUND_NONZEROS_H

#include "autoscheduler/bound/bound_cpu.h"
#include "autoscheduler/bound/knobs.h"
#include "kernels/dot_products.h"
#include "runtime/kinds/nonzeros_layout.h"

namespace distile {

DISTILE_BOUND_KNOBS(NonzeroKnobs, tile_h, tile_w, vectors, channel_splits);

template<typename Sink>
void add_nonzero_terms(const Workload &workload, const NonzeroKnobs &theta, int64_t tiles, Sink &sink) {
    const Problem &problem = workload.problem;
    const DeviceProfile &device = workload.device;
    const double cycle_us = 1e-3 / device.ghz, lanes = problem.vector_lanes, vectors = theta.vectors;
    const auto time = [&](const char *name, double us) { sink.time(name, us); };
    const bool window = theta.tile_h * theta.tile_w > 1;

    // The tasks, as the code cuts them.
    constexpr double parts_of_thread = 4;
    const double units =
        window ? static_cast<double>(tiles) : std::ceil(static_cast<double>(tiles) / (vectors * lanes));
    const double blocks = std::ceil(problem.out_channels / static_cast<double>(DISTILE_NONZERO_BLOCK));
    const double threads = workload.threads, parts = std::min(units, parts_of_thread * threads);
    const double shared = threads > 1 ? std::ceil(2 * threads / units) : 1;
    const double splits = std::min(blocks, std::max<double>(theta.channel_splits, shared));
    const double tasks = parts * splits, rounds = std::ceil(tasks / threads), cores = std::min(tasks, threads);
    const double task_units = units / parts;
    // The vectors of a block that a mask of single pixels fills.
    const double used = window ? vectors : std::min(vectors, std::ceil(static_cast<double>(tiles) / lanes / units));

    // A nonzero weight is broadcast and multiplies each vector of the block, which it loads.
    const double taps = static_cast<double>(problem.kernel_h) * problem.kernel_w;
    const double width = problem.nonzero_channels;
    const double all_words = std::ceil(static_cast<double>(problem.in_channels) * problem.groups / width);
    const double nonzeros =
        problem.nonzeros * std::ceil(problem.in_channels / width) * taps * problem.out_channels / splits;
    const double chunks = std::ceil(all_words / nonzero_channels(problem.kernel_h, problem.kernel_w));
    const double rows = chunks * problem.out_channels / splits;
    const double operations = task_units * nonzeros * used,
                 loads = task_units * (nonzeros * (used + 2) + 2 * rows * used);
    constexpr double row_cycles = 6;
    time("fma", rounds * (device.alpha_us * problem.nonzero_instructions * operations + device.gamma_us));
    time("load", rounds * loads / device.load_per_cycle * cycle_us);
    time("loop", rounds * task_units * rows * row_cycles * cycle_us);

    // Squares of numbers are turned in registers, as they are staged and as they are stored.
    const double turn_cycles = 5;
    const double staged_rows = window ? (vectors - 1) * problem.stride_h + problem.kernel_h : problem.kernel_h * used;
    const double staged = task_units * staged_rows * problem.kernel_w * all_words;
    const double stored = task_units * used * problem.out_channels / splits;
    time("stage", rounds * staged * turn_cycles * cycle_us);
    time("store", rounds * stored * 2 * turn_cycles * cycle_us);

    const double bytes = problem.bytes_per_element, word_bytes = sizeof(float), nonzero_bytes = 6;
    const double all_pixels = static_cast<double>(tiles) * theta.tile_h * theta.tile_w;
    const double weight_bytes = nonzeros * nonzero_bytes, staged_bytes = staged * lanes * word_bytes,
                 output_bytes = stored * lanes * bytes;
    const double all_input = input_footprint(workload, theta.tile_h, theta.tile_w, all_pixels);
    const double all_output = all_pixels * problem.out_channels * bytes;
    const auto core_traffic = [&](double room) {
        const double again = weight_bytes <= room ? 1 : task_units;
        return rounds * (again * weight_bytes + output_bytes + staged_bytes);
    };
    add_memory_times(device, cores, weight_bytes * splits + all_input + all_output,
                     rounds * (weight_bytes + staged_bytes + output_bytes), core_traffic, time);
    add_task_counts(workload, {tasks, rounds, task_units, operations, loads, task_units * nonzeros, used}, sink);
}

}  // namespace distile

#endif
