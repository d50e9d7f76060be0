/** \file
 * The terms of the bound on an NVIDIA GPU: equations (8) to (11) of the paper, and the corrected form of them. A sink
 * gets them: time(name, us), count(name, value), launches(us). schedules/cuda_space.h describes what a block does.
 */
#ifndef DISTILE_BOUND_CUDA_H
#define DISTILE_BOUND_CUDA_H

#include "autoscheduler/bound/bound_cpu.h"
#include "schedules/cuda_space.h"

namespace distile {

inline const std::vector<const char *> &cuda_knobs() {
    static const std::vector<const char *> knobs = {
        "tile_h",          "tile_w",   "block_pixels", "block_channels", "thread_pixels",
        "thread_channels", "chunk",    "splits",       "weights_staged", "transposed",
        "padding",         "prefetch", "halo"};
    return knobs;
}

/** Threads lie along the channels first. Those with the same pixels read the same inputs, and those with the same
 * channels the same weights. */
inline WarpAccesses warp_accesses(const BoundKnobs &knobs, const Problem &problem, int banks) {
    const std::array<int, 16> &values = knobs.values;
    const int tile_h = values[0] / problem.scale_h, tile_w = values[1] / problem.scale_w;  // In virtual pixels.
    const int block_channels = values[3], thread_pixels = values[4];
    const int thread_channels = values[5], chunk = values[6], padding = values[10];
    const bool transposed = values[9] != 0, halo = values[12] != 0;
    const int lanes = problem.vector_lanes;
    const int along_channels = std::min(32, block_channels / thread_channels), along_pixels = 32 / along_channels;

    // Where a pixel of the block lies in shared memory: in its own place, or in its tile's window; transposed, rows of
    // windows or all pixels are contiguous, else the channels of a pixel are.
    const int window_h = (tile_h - 1) * problem.stride_h + (problem.kernel_h - 1) * problem.dilation_h + 1;
    const int window_w = (tile_w - 1) * problem.stride_w + (problem.kernel_w - 1) * problem.dilation_w + 1;
    const int row = std::max(1, halo ? window_w : knobs.block.staged_pixels);
    const int channel_stride = transposed ? knobs.block.staged_pixels / row * (row + padding) : 1;
    const auto place = [&](int y, int x) {
        return transposed ? y * (row + padding) + x : (y * row + x) * (chunk + padding);
    };
    const auto place_of = [&](int pixel) {
        const int tile = pixel / (tile_h * tile_w);
        return halo ? place(tile * window_h + pixel / tile_w % tile_h * problem.stride_h,
                            pixel % tile_w * problem.stride_w)
                    : place(0, pixel);
    };

    std::array<int, 32> addresses{};
    WarpAccesses result{};
    // Transposed, a thread's pixels of a channel are contiguous, and it loads vectors of them; but in a window their
    // place moves with the position of the kernel.
    const int words = transposed && !halo ? std::min(thread_pixels, lanes) : 1;
    for (int i = 0; i < along_pixels; i++) {
        addresses[i] = place_of(i * thread_pixels);
    }
    result.input_loads = thread_pixels / words;
    result.input_passes = result.input_loads * shared_passes(addresses.data(), along_pixels, words, banks);
    // Weights that are not staged come through the cache, whose memory is the same.
    for (int i = 0; i < along_channels; i++) {
        addresses[i] = i * lanes;
    }
    result.weight_loads = thread_channels / lanes;
    result.weight_passes = result.weight_loads * shared_passes(addresses.data(), along_channels, lanes, banks);
    // Threads that stage take the vectors of a pixel's channels first, then the next pixel. A vector that is transposed
    // is stored in single words.
    const int vectors = std::max(1, std::min(32, chunk / lanes));
    for (int i = 0; i < 32; i++) {
        const int pixel = i / vectors;
        addresses[i] = i % vectors * lanes * channel_stride + place(pixel / row, pixel % row);
    }
    result.store_passes = transposed ? lanes * shared_passes(addresses.data(), 32, 1, banks)
                                     : shared_passes(addresses.data(), 32, lanes, banks);
    return result;
}

template<typename Sink>
void add_cuda_terms(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm form, Sink &sink) {
    const std::array<int, 16> &values = knobs.values;
    const int tile_h = values[0] / workload.problem.scale_h, tile_w = values[1] / workload.problem.scale_w;
    const int block_pixels = values[2], block_channels = values[3];
    const int thread_pixels = values[4], thread_channels = values[5], chunk = values[6], splits = values[7];
    const bool weights_staged = values[8] != 0, prefetch = values[11] != 0, halo = values[12] != 0;
    const Problem &problem = workload.problem;
    const DeviceProfile &device = workload.device;
    const bool corrected = form == BoundForm::Corrected;
    const double bytes = problem.bytes_per_element, weight_bytes = problem.bytes_per_weight;
    const int phases = problem.phases();
    const int multiprocessors = device.cores;

    // The blocks, and the steps of the reduction that each of them takes. Pixels are virtual, and a block is of one
    // phase.
    const double all_pixels = static_cast<double>(tiles) * tile_h * tile_w;
    const int out_channels = padded_channels(problem);
    const double pixel_blocks = std::ceil(all_pixels / block_pixels);
    const int channel_blocks = out_channels / block_channels;
    const double blocks = pixel_blocks * channel_blocks * splits * phases;
    const int taps = halo ? problem.kernel_h * problem.kernel_w : 1;  // The taps of a step.
    const double steps =
        static_cast<double>(problem.in_channels) / splits / chunk * problem.kernel_h * problem.kernel_w / taps;
    const int threads = block_pixels / thread_pixels * (block_channels / thread_channels);
    const int warps = threads / 32;

    // (9): what a block takes of a multiprocessor. Registers for the sums and operands, for addresses, and for what is
    // on its way from memory; a thread's are dealt in eights.
    const int staged_pixels = knobs.block.staged_pixels;
    const int staged_weights = weights_staged ? chunk * taps * block_channels : 0;
    const int thread_registers = round_up(thread_pixels * thread_channels + thread_pixels + thread_channels + 32 +
                                              (prefetch ? knobs.block.prefetch_registers : 0),
                                          8);
    // The driver keeps a part of shared memory for itself.
    const int64_t shared = knobs.block.shared_bytes + (corrected ? 1024 : 0);
    const int resident = std::max(1, occupancy(device, threads, std::min(thread_registers, 255), shared));
    const double everywhere = static_cast<double>(resident) * multiprocessors;
    const double rounds = std::ceil(blocks / everywhere);
    // The corrected form knows that the last round, often the only one, has fewer blocks for a multiprocessor.
    const double last_resident =
        corrected ? std::ceil((blocks - (rounds - 1) * everywhere) / multiprocessors) : resident;
    const double block_turns = (rounds - 1) * resident + last_resident;

    // (8): transactions of a block. A pixel's staged channels are contiguous, and no further; a step's weights are a
    // contiguous chunk of every block of channels.
    const MemoryLevel &fast = device.memory[0], &l2 = device.memory[1], &dram = device.memory[2];
    const int transaction = corrected ? l2.transaction_bytes / problem.bytes_per_element : 32;
    const int weight_transaction = corrected ? l2.transaction_bytes / problem.bytes_per_weight : 32;
    const double input_transactions =
        steps * static_cast<double>(memory_transactions(staged_pixels, chunk, problem.in_channels, transaction));
    const double weight_transactions =
        steps * taps * block_channels / problem.channel_block *
        static_cast<double>(
            memory_transactions(1, int64_t{chunk} * problem.channel_block, int64_t{1} << 40, weight_transaction));
    const double output_transactions =
        static_cast<double>(memory_transactions(block_pixels, block_channels, problem.out_channels, transaction));
    const double transactions = input_transactions + weight_transactions + output_transactions;
    const double moved = blocks * (bytes * transaction * (input_transactions + output_transactions) +
                                   weight_bytes * weight_transaction * weight_transactions);
    if (corrected) {
        const double unique = input_footprint(workload, tile_h, tile_w, all_pixels) +
                              static_cast<double>(problem.in_channels) * problem.kernel_h * problem.kernel_w *
                                  out_channels * phases * weight_bytes +
                              all_pixels * phases * out_channels * bytes;
        // The blocks of a split reduction write partial sums, which a second kernel reads again to add them up.
        const double partial_sums = splits > 1 ? all_pixels * out_channels * sizeof(float) * splits : 0;
        sink.time("global", unique / (dram.gb_per_s * 1e3));
        sink.time("L2", (moved + partial_sums) / (l2.gb_per_s * 1e3));
        sink.count("unique_bytes", unique);
    } else {
        sink.time("global", moved / (dram.gb_per_s * 1e3));
    }

    // (10): passes over the banks of shared memory.
    const WarpAccesses &warp = knobs.warp;
    const double input_stores = static_cast<double>(staged_pixels) * chunk / problem.vector_lanes / 32;
    const double weight_stores = static_cast<double>(staged_weights) / problem.vector_lanes / 32;
    const int weight_passes = weights_staged || corrected ? warp.weight_passes : 0;
    const double step_passes = chunk * taps * warps * static_cast<double>(warp.input_passes + weight_passes) +
                               input_stores * warp.store_passes + weight_stores * problem.vector_lanes;
    const double pass_bytes = device.shared_banks * 4.0;
    sink.time("shared", block_turns * steps * step_passes * pass_bytes / (fast.gb_per_s * 1e3));

    // (11): operations of a warp. The corrected form counts what else takes a turn to be issued (loads, copies, and
    // some eight for the loop and its barriers), and knows that the four parts of a multiprocessor each take a warp of
    // their own.
    const double multiply_adds = steps * chunk * taps * thread_pixels * thread_channels;
    const double step_loads = chunk * taps * static_cast<double>(warp.input_loads + warp.weight_loads);
    const double step_copies = 2.0 * (staged_pixels * chunk + staged_weights) / problem.vector_lanes / threads;
    const double others = steps * (step_loads + step_copies + 8);
    const auto round_us = [&](double blocks_at_once) {
        const double warps_at_once = corrected ? std::ceil(blocks_at_once * warps / 4) * 4 : blocks_at_once * warps;
        return device.alpha_us * (multiply_adds + (corrected ? others : 0)) * warps_at_once + device.gamma_us;
    };
    sink.time("compute", (rounds - 1) * round_us(resident) + round_us(last_resident));
    if (corrected) {
        // The steps of a block follow each other, each with its wait for memory. Only a prefetch computes meanwhile,
        // and only what is staged can be prefetched.
        const double step_us = device.alpha_us * chunk * taps * thread_pixels * thread_channels * std::max(warps, 4);
        const bool waits_alone = !prefetch || !weights_staged;
        sink.time("latency", rounds * steps * (l2.latency_ns * 1e-3 + (waits_alone ? step_us : 0)));
        sink.launches((splits > 1 ? 2 : 1) * device.launch_us);
    }

    sink.count("blocks", blocks);
    sink.count("steps", steps);
    sink.count("threads", threads);
    sink.count("registers", thread_registers);
    sink.count("shared_bytes", static_cast<double>(knobs.block.shared_bytes));
    sink.count("resident", resident);
    sink.count("rounds", rounds);
    sink.count("idle", 1 - blocks / (rounds * everywhere));
    sink.count("transactions", transactions);
    const double straight = warp.input_loads * problem.vector_lanes + warp.weight_loads * problem.vector_lanes;
    sink.count("conflicts", straight > 0 ? (warp.input_passes + warp.weight_passes) / straight : 1);
    sink.count("operations", multiply_adds);
    sink.count("other_operations", others);
    sink.count("tail", pixel_blocks * block_pixels / all_pixels);
}

}  // namespace distile

#endif
