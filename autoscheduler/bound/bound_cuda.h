/** \file
 * The terms of the bound on an NVIDIA GPU: equations (8) to (11) of the paper, and the corrected form of them. A sink
 * gets them: time(name, us), count(name, value), launches(us). schedules/cuda_space.h describes what a block does.
 */
#ifndef DISTILE_BOUND_CUDA_H
#define DISTILE_BOUND_CUDA_H

#include "autoscheduler/bound/bound_cpu.h"
#include "autoscheduler/bound/knobs.h"
#include "schedules/cuda_space.h"

namespace distile {

DISTILE_BOUND_KNOBS(CudaKnobs, tile_h, tile_w, block_pixels, block_channels, thread_pixels, thread_channels, chunk,
                    splits, weights_staged, transposed, padding, prefetch, halo);

/** Threads lie along the channels first. Those with the same pixels read the same inputs, and those with the same
 * channels the same weights. */
inline WarpAccesses warp_accesses(const CudaKnobs &theta, int staged_pixels, const Problem &problem, int banks) {
    const int tile_h = theta.tile_h / problem.scale_h, tile_w = theta.tile_w / problem.scale_w;  // In virtual pixels.
    const int block_channels = theta.block_channels, thread_pixels = theta.thread_pixels;
    const int thread_channels = theta.thread_channels, chunk = theta.chunk, padding = theta.padding;
    const bool transposed = theta.transposed != 0, halo = theta.halo != 0;
    const int lanes = problem.vector_lanes;
    const int along_channels = std::min(32, block_channels / thread_channels), along_pixels = 32 / along_channels;

    // Where a pixel of the block lies in shared memory: in its own place, or in its tile's window; transposed, rows of
    // windows or all pixels are contiguous, else the channels of a pixel are.
    const int window_h = (tile_h - 1) * problem.stride_h + (problem.kernel_h - 1) * problem.dilation_h + 1;
    const int window_w = (tile_w - 1) * problem.stride_w + (problem.kernel_w - 1) * problem.dilation_w + 1;
    const int row = std::max(1, halo ? window_w : staged_pixels);
    const int channel_stride = transposed ? staged_pixels / row * (row + padding) : 1;
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

/** The blocks of a call, what each takes of a multiprocessor, and the rounds in which they run. Pixels are virtual, and
 * a block is of one phase. */
struct CudaBlocks {
    CudaBlocks(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, bool corrected)
        : theta(CudaKnobs::of(knobs.values)), tile_h(theta.tile_h / workload.problem.scale_h),
          tile_w(theta.tile_w / workload.problem.scale_w), all_pixels(static_cast<double>(tiles) * tile_h * tile_w),
          out_channels(padded_channels(workload.problem)), staged_pixels(knobs.block.staged_pixels) {
        const Problem &problem = workload.problem;
        const int thread_pixels = theta.thread_pixels, thread_channels = theta.thread_channels;
        pixel_blocks = std::ceil(all_pixels / theta.block_pixels);
        const int channel_blocks = out_channels / theta.block_channels;
        count = pixel_blocks * channel_blocks * theta.splits * problem.phases();
        taps = theta.halo != 0 ? problem.kernel_h * problem.kernel_w : 1;
        steps = static_cast<double>(problem.in_channels) / theta.splits / theta.chunk * problem.kernel_h *
                problem.kernel_w / taps;
        threads = theta.block_pixels / thread_pixels * (theta.block_channels / thread_channels);
        staged_weights = theta.weights_staged != 0 ? theta.chunk * taps * theta.block_channels : 0;
        // (9): registers for the sums and operands, for addresses, and for what is on its way from memory; a thread's
        // are dealt in eights.
        thread_registers = round_up(thread_pixels * thread_channels + thread_pixels + thread_channels + 32 +
                                        (theta.prefetch != 0 ? knobs.block.prefetch_registers : 0),
                                    8);
        // The driver keeps a part of shared memory for itself.
        const int64_t shared = knobs.block.shared_bytes + (corrected ? 1024 : 0);
        resident = std::max(1, occupancy(workload.device, threads, std::min(thread_registers, 255), shared));
        everywhere = static_cast<double>(resident) * workload.device.cores;
        rounds = std::ceil(count / everywhere);
        // The corrected form knows that the last round, often the only one, has fewer blocks for a multiprocessor.
        last_resident = corrected ? std::ceil((count - (rounds - 1) * everywhere) / workload.device.cores) : resident;
    }

    CudaKnobs theta;
    int tile_h, tile_w;
    double all_pixels;
    int out_channels;
    int staged_pixels, staged_weights;
    double pixel_blocks, count;
    int taps;      ///< The taps of a step of the reduction.
    double steps;  ///< The steps that each block takes.
    int threads, thread_registers;
    int resident;  ///< Blocks of a multiprocessor at once; in the last round, last_resident.
    double everywhere, rounds, last_resident;
};

/** (8): transactions of a block. A pixel's staged channels are contiguous, and no further; a step's weights are a
 * contiguous chunk of every block of channels. */
template<typename Sink>
void add_cuda_transactions(const Workload &workload, const CudaBlocks &blocks, bool corrected, Sink &sink) {
    const Problem &problem = workload.problem;
    const CudaKnobs &theta = blocks.theta;
    const double bytes = problem.bytes_per_element, weight_bytes = problem.bytes_per_weight;
    const MemoryLevel &l2 = workload.device.memory[1], &dram = workload.device.memory[2];
    const int transaction = corrected ? l2.transaction_bytes / problem.bytes_per_element : 32;
    const int weight_transaction = corrected ? l2.transaction_bytes / problem.bytes_per_weight : 32;
    const double input_transactions =
        blocks.steps *
        static_cast<double>(memory_transactions(blocks.staged_pixels, theta.chunk, problem.in_channels, transaction));
    const double weight_transactions =
        blocks.steps * blocks.taps * theta.block_channels / problem.channel_block *
        static_cast<double>(
            memory_transactions(1, int64_t{theta.chunk} * problem.channel_block, int64_t{1} << 40, weight_transaction));
    const double output_transactions = static_cast<double>(
        memory_transactions(theta.block_pixels, theta.block_channels, problem.out_channels, transaction));
    const double moved = blocks.count * (bytes * transaction * (input_transactions + output_transactions) +
                                         weight_bytes * weight_transaction * weight_transactions);
    if (corrected) {
        const double unique = input_footprint(workload, blocks.tile_h, blocks.tile_w, blocks.all_pixels) +
                              static_cast<double>(problem.in_channels) * problem.kernel_h * problem.kernel_w *
                                  blocks.out_channels * problem.phases() * weight_bytes +
                              blocks.all_pixels * problem.phases() * blocks.out_channels * bytes;
        // The blocks of a split reduction write partial sums, which a second kernel reads again to add them up.
        const double partial_sums =
            theta.splits > 1 ? blocks.all_pixels * blocks.out_channels * sizeof(float) * theta.splits : 0;
        sink.time("global", unique / (dram.gb_per_s * 1e3));
        sink.time("L2", (moved + partial_sums) / (l2.gb_per_s * 1e3));
        sink.count("unique_bytes", unique);
    } else {
        sink.time("global", moved / (dram.gb_per_s * 1e3));
    }
    sink.count("transactions", input_transactions + weight_transactions + output_transactions);
}

/** (10): passes over the banks of shared memory. */
template<typename Sink> void add_cuda_passes(const Workload &workload, const CudaBlocks &blocks,
                                             const WarpAccesses &warp, bool corrected, Sink &sink) {
    const CudaKnobs &theta = blocks.theta;
    const int vector_lanes = workload.problem.vector_lanes, warps = blocks.threads / 32;
    const double input_stores = static_cast<double>(blocks.staged_pixels) * theta.chunk / vector_lanes / 32;
    const double weight_stores = static_cast<double>(blocks.staged_weights) / vector_lanes / 32;
    const int weight_passes = theta.weights_staged != 0 || corrected ? warp.weight_passes : 0;
    const double step_passes =
        theta.chunk * blocks.taps * warps * static_cast<double>(warp.input_passes + weight_passes) +
        input_stores * warp.store_passes + weight_stores * vector_lanes;
    const double pass_bytes = workload.device.shared_banks * 4.0;
    const double block_turns = (blocks.rounds - 1) * blocks.resident + blocks.last_resident;
    sink.time("shared",
              block_turns * blocks.steps * step_passes * pass_bytes / (workload.device.memory[0].gb_per_s * 1e3));
    const double straight = warp.input_loads * vector_lanes + warp.weight_loads * vector_lanes;
    sink.count("conflicts", straight > 0 ? (warp.input_passes + warp.weight_passes) / straight : 1);
}

/** (11): operations of a warp. The corrected form counts what else takes a turn to be issued (loads, copies, and some
 * eight for the loop and its barriers), and knows that the four parts of a multiprocessor each take a warp of their
 * own. */
template<typename Sink> void add_cuda_operations(const Workload &workload, const CudaBlocks &blocks,
                                                 const WarpAccesses &warp, bool corrected, Sink &sink) {
    const CudaKnobs &theta = blocks.theta;
    const DeviceProfile &device = workload.device;
    const int chunk = theta.chunk, taps = blocks.taps, warps = blocks.threads / 32;
    const double multiply_adds = blocks.steps * chunk * taps * theta.thread_pixels * theta.thread_channels;
    const double step_loads = chunk * taps * static_cast<double>(warp.input_loads + warp.weight_loads);
    const double step_copies =
        2.0 * (blocks.staged_pixels * chunk + blocks.staged_weights) / workload.problem.vector_lanes / blocks.threads;
    const double others = blocks.steps * (step_loads + step_copies + 8);
    const auto round_us = [&](double blocks_at_once) {
        const double warps_at_once = corrected ? std::ceil(blocks_at_once * warps / 4) * 4 : blocks_at_once * warps;
        return device.alpha_us * (multiply_adds + (corrected ? others : 0)) * warps_at_once + device.gamma_us;
    };
    sink.time("compute", (blocks.rounds - 1) * round_us(blocks.resident) + round_us(blocks.last_resident));
    if (corrected) {
        // The steps of a block follow each other, each with its wait for memory. Only a prefetch computes meanwhile,
        // and only what is staged can be prefetched.
        const double step_us =
            device.alpha_us * chunk * taps * theta.thread_pixels * theta.thread_channels * std::max(warps, 4);
        const bool waits_alone = theta.prefetch == 0 || theta.weights_staged == 0;
        sink.time("latency",
                  blocks.rounds * blocks.steps * (device.memory[1].latency_ns * 1e-3 + (waits_alone ? step_us : 0)));
        sink.launches((theta.splits > 1 ? 2 : 1) * device.launch_us);
    }
    sink.count("operations", multiply_adds);
    sink.count("other_operations", others);
}

template<typename Sink>
void add_cuda_terms(const Workload &workload, const BoundKnobs &knobs, int64_t tiles, BoundForm form, Sink &sink) {
    const bool corrected = form == BoundForm::Corrected;
    const CudaBlocks blocks(workload, knobs, tiles, corrected);
    add_cuda_transactions(workload, blocks, corrected, sink);
    add_cuda_passes(workload, blocks, knobs.block.warp, corrected, sink);
    add_cuda_operations(workload, blocks, knobs.block.warp, corrected, sink);
    sink.count("blocks", blocks.count);
    sink.count("steps", blocks.steps);
    sink.count("threads", blocks.threads);
    sink.count("registers", blocks.thread_registers);
    sink.count("shared_bytes", static_cast<double>(knobs.block.shared_bytes));
    sink.count("resident", blocks.resident);
    sink.count("rounds", blocks.rounds);
    sink.count("idle", 1 - blocks.count / (blocks.rounds * blocks.everywhere));
    sink.count("tail", blocks.pixel_blocks * blocks.theta.block_pixels / blocks.all_pixels);
}

}  // namespace distile

#endif
