/** \file
 * The terms of the bound for code of dot products (schedules/dot_product_space.h). A sink gets them as on any CPU
 * (bound_cpu.h).
 *
 * A task stages what its pixels read and multiplies it with one block of output channels after the other. Where the
 * output has phases, all of this is done once a phase, for as many taps as the phase with the most has.
 */
#ifndef DISTILE_BOUND_DOT_PRODUCT_H
#define DISTILE_BOUND_DOT_PRODUCT_H

#include "autoscheduler/bound/bound_cpu.h"
#include "autoscheduler/bound/knobs.h"
#include "kernels/cpu/partition.h"
#include "schedules/dot_product_space.h"

namespace distile {

DISTILE_BOUND_KNOBS(DotProductKnobs, tile_h, tile_w, pixels, channels, staged, channel_splits);

inline bool multiplies_tiles(DotProducts instructions) {
    return instructions == DotProducts::AmxBf16 || instructions == DotProducts::AmxFp16 ||
           instructions == DotProducts::AmxSplitFp16 || instructions == DotProducts::AmxInt8;
}

/** The vector instructions that multiply a pack of a pixel with those of 16 output channels; `shuffled`: one for each
 * of their groups. */
inline double instructions_of_pack(DotProducts instructions, bool shuffled) {
    switch (instructions) {
    case DotProducts::AvxVnni:
        return shuffled ? 4 : 2;
    case DotProducts::Avx2Int8:
        return shuffled ? 14 : 8;
    case DotProducts::PortableInt8:
        return shuffled ? 64 : 32;
    default:
        return shuffled ? 2 : 1;
    }
}

/** The vectors, of as many bytes as instructions shuffle at once, in which a depthwise convolution stages a tap of a
 * block of channels. */
inline double tap_vectors(DotProducts instructions, int channels) {
    const int widest = instructions == DotProducts::Avx512Vnni     ? 64
                       : instructions == DotProducts::PortableInt8 ? 16
                                                                   : 32;
    int vectors = channels / widest;
    for (int bytes = widest / 2, left = channels % widest; bytes >= 16; left %= bytes, bytes /= 2) {
        vectors += left / bytes;
    }
    return vectors;
}

/** How the code cuts a call of `groups` blocks of output channels, with `steps` of the reduction, into tasks. */
inline dot_product::Partition<void> dot_product_tasks(const Workload &workload, const DotProductKnobs &theta,
                                                      int64_t tiles, double steps, double groups) {
    constexpr int vector_channels = 16;
    const bool depthwise = is_depthwise_product(workload.problem);
    const DotProducts instructions = *workload.problem.dot_products;
    dot_product::WorkShape work{};
    work.tiles = static_cast<int32_t>(tiles);
    work.tile_pixels = theta.tile_h * theta.tile_w;
    work.block_pixels = theta.pixels;
    work.staged_blocks = theta.staged;
    work.blocks = static_cast<int32_t>(groups);
    work.block_vectors = theta.channels / vector_channels;
    work.steps = static_cast<int32_t>(std::ceil(steps));
    work.shares_staging = (channel_sections(workload.problem).count() == 1 && !depthwise) || groups == 1;
    work.threads = workload.threads;
    work.least_splits = theta.channel_splits;
    return dot_product::Partition<void>::best(work, instructions == DotProducts::AmxSplitFp16
                                                        ? dot_product::in_split_tiles
                                                    : multiplies_tiles(instructions) ? dot_product::in_tiles
                                                    : depthwise                      ? dot_product::in_columns
                                                                                     : dot_product::in_registers);
}

template<typename Sink>
void add_dot_product_terms(const Workload &workload, const DotProductKnobs &theta, int64_t tiles, Sink &sink) {
    const int pixels = theta.pixels, channels = theta.channels;
    const Problem &problem = workload.problem;
    const int tile_h = theta.tile_h, tile_w = theta.tile_w;
    const double phases = static_cast<double>(problem.scale_h) * problem.scale_w;
    const DeviceProfile &device = workload.device;
    const double cycle_us = 1e-3 / device.ghz, bytes = problem.bytes_per_element;
    const auto time = [&](const char *name, double us) { sink.time(name, us); };

    constexpr double vector_channels = 16, step_bytes = 64;
    const double step_elements = step_bytes / bytes;
    const double all_pixels = static_cast<double>(tiles) * tile_h * tile_w;
    // The reduction of an output channel, in packs of 4 bytes. A depthwise convolution stages it for every channel,
    // but shares most columns with pixels nearby; others do for each section of the output channels.
    constexpr double step_packs = 16;
    const bool depthwise = is_depthwise_product(problem);
    const DotProducts instructions = *problem.dot_products;
    const bool is_split = instructions == DotProducts::AmxSplitFp16;
    const bool in_tiles = multiplies_tiles(instructions);
    const ChannelSections sections = channel_sections(problem);
    const double taps = static_cast<double>(problem.kernel_h) * problem.kernel_w, reduction = sections.inputs() * taps;
    const double steps = depthwise ? std::ceil(problem.kernel_h / 4.0) * problem.kernel_w / step_packs
                                   : std::ceil(reduction / step_elements);
    // Vectors of groups that are apart multiply a pack of each at once.
    const int apart = in_tiles ? 1 : sections.apart();
    const double packs = depthwise ? steps * step_packs : std::ceil(reduction / sections.pack) / apart;

    // The tasks, as the code cuts them, and what one of them computes in all phases.
    const double section_blocks = std::ceil(sections.padded_outputs() / static_cast<double>(channels)),
                 groups = sections.count() * section_blocks,
                 group_channels = sections.padded_outputs() / section_blocks;
    const auto cut = dot_product_tasks(workload, theta, tiles, steps, groups);
    const double parts = cut.parts, used_splits = cut.splits, tasks = parts * used_splits;
    const double rounds = std::ceil(tasks / workload.threads), cores = std::min<double>(tasks, workload.threads);
    const double task_pixels = all_pixels / parts, blocks = std::max(task_pixels / pixels, phases);
    const double task_groups = std::ceil(groups / used_splits), task_channels = task_groups * group_channels,
                 vectors = task_channels / vector_channels;
    const double num_staged = depthwise ? vector_channels * vectors : std::ceil(task_groups / section_blocks);

    // A vector multiplies packs of 4 bytes: 16 of them are a step. A tile takes 16 cycles for 16 pixels, 16 channels
    // and a step, of split numbers four times.
    constexpr double tile_pixels = 16, tile_cycles = 16;
    const double operations = in_tiles ? std::ceil(task_pixels / tile_pixels) * vectors * steps * (is_split ? 4 : 1)
                                       : task_pixels * vectors * packs;
    const double operation_us =
        in_tiles ? tile_cycles * cycle_us : device.alpha_us * instructions_of_pack(instructions, apart > 1);
    // A vector of results: bias, activation, and rounding.
    constexpr double end_cycles = 10;
    const double ends_us = task_pixels * vectors * end_cycles * cycle_us;
    time("fma", rounds * (operation_us * operations + ends_us + device.gamma_us));
    // What a block holds of one factor is loaded once for all that it holds of the other.
    const double of_pixels = depthwise ? 1 : 1.0 / (channels / vector_channels);
    const double loads = operations * (of_pixels + (in_tiles ? tile_pixels : 1) / pixels);
    time("load", rounds * loads * (in_tiles ? 8 : 1 / device.load_per_cycle) * cycle_us);

    // What is staged is read from the input and written once a task, tap by tap. Both this and the weights of a task
    // are split, 32 numbers at a time.
    constexpr double tap_cycles = 8;
    const double staged_taps = depthwise ? 0 : task_pixels * num_staged * taps;
    const double staged_bytes = task_pixels * num_staged * steps * step_elements * bytes * (is_split ? 2 : 1);
    const MemoryLevel &nearest = device.memory[0];
    constexpr double split_numbers = 32, split_cycles = 12;
    const double split = is_split ? (task_pixels * num_staged + task_channels * phases) * steps * step_elements : 0;
    // Four taps of a column, one below the other, are interleaved. Pixels beside each other share columns.
    constexpr double interleave_cycles = 24;
    const double columns = std::min(problem.stride_w, problem.kernel_w) * std::ceil(problem.kernel_h / 4.0);
    const double interleavings =
        depthwise ? task_pixels * columns * task_channels / channels * tap_vectors(instructions, channels) : 0;
    time("stage", rounds * (2 * staged_bytes / (nearest.gb_per_s * 1e3) +
                            (staged_taps * tap_cycles + split / split_numbers * split_cycles +
                             interleavings * interleave_cycles) *
                                cycle_us));

    const double weight_bytes = steps * step_elements * problem.bytes_per_weight;
    const double split_weights = weight_bytes * task_channels * phases,
                 task_output = task_pixels * task_channels * bytes;
    const double all_weights = weight_bytes * sections.blocks() * vector_channels * phases;
    const double all_input = input_footprint(workload, tile_h, tile_w, all_pixels);
    const double all_output = all_pixels * problem.out_channels * bytes;
    const double core_data = std::min(rounds, used_splits) * split_weights + staged_bytes + rounds * task_output;
    const auto core_traffic = [&](double room) {
        // The weights are read once a task; what is staged, once for each block of channels that reads it unless it
        // stays.
        const double again = staged_bytes <= room ? 1 : std::max(std::ceil(groups / used_splits / num_staged), 1.0);
        return rounds * (split_weights + again * staged_bytes + task_output);
    };
    add_memory_times(device, cores, all_weights + all_input + all_output, core_data, core_traffic, time);
    add_task_counts(workload,
                    {tasks, rounds, blocks, operations, loads, steps * blocks, pixels * channels / vector_channels},
                    sink);
}

}  // namespace distile

#endif
