/** \file
 * The terms of the bound on a GPU for operators that read a key or a value, by Halide. A sink gets them: time(name,
 * us), count(name, value), launches(us). schedules/gpu_token_space.h describes what a block does.
 */
#ifndef DISTILE_BOUND_GPU_TOKENS_H
#define DISTILE_BOUND_GPU_TOKENS_H

#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/knobs.h"
#include "schedules/gpu_token_space.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace distile {

DISTILE_BOUND_KNOBS(GpuTokenKnobs, block_rows, block_keys, thread_rows);

template<typename Sink>
void add_gpu_token_terms(const Workload &workload, const GpuTokenKnobs &knobs, int64_t tiles, Sink &sink) {
    const Theta theta = {
        {"block_rows", knobs.block_rows}, {"block_keys", knobs.block_keys}, {"thread_rows", knobs.thread_rows}};
    const double block_rows = knobs.block_rows, block_keys = knobs.block_keys, rows = knobs.thread_rows;
    const Problem &problem = workload.problem;
    const DeviceProfile &device = workload.device;
    const bool scores = problem.product != TokenProduct::Values, has_values = problem.product != TokenProduct::Scores;
    const double dim = problem.head_dim, bytes = problem.bytes_per_element;

    const double images = std::max(1.0, static_cast<double>(workload.batch)), all_rows = static_cast<double>(tiles);
    const double row_blocks = std::ceil(all_rows / images / block_rows) * images * problem.heads;
    const double key_tiles = std::ceil(static_cast<double>(workload.keys) / block_keys);
    // Scores alone have a block for each tile of keys.
    const double blocks = has_values ? row_blocks : row_blocks * key_tiles, steps = has_values ? key_tiles : 1;
    const int threads = token_threads(theta), warps = threads / 32;
    const int registers = std::min(255, round_up(token_registers(theta, problem) + 32, 8));
    const int shared = static_cast<int>(token_shared_bytes(theta, problem));
    const int resident = std::max(1, occupancy(device, threads, registers, shared));
    const double everywhere = static_cast<double>(resident) * device.cores;
    const double rounds = std::ceil(blocks / everywhere);
    const double block_turns = (rounds - 1) * resident + std::ceil((blocks - (rounds - 1) * everywhere) / device.cores);

    // What follows counts the work of a thread for a tile of keys. A softmax computes the scores twice, and each takes
    // two powers of 2.
    const double keys = block_keys / key_threads, channels = 4.0 * vectors_per_thread(problem);
    const double score_passes = !scores ? 0 : has_values ? 2 : 1, power_operations = 14;
    const double multiply_adds = score_passes * rows * keys * dim + (has_values ? rows * channels * block_keys : 0);
    const double loads =
        score_passes * (rows + keys) * dim / 4 + (has_values ? block_keys * (rows / 4 + channels / 4) : rows * keys);
    const double others = score_passes * rows * keys * power_operations;
    const double staged = block_keys * dim * (score_passes + (has_values ? 1 : 0)) / threads;
    const double operations = multiply_adds + loads + others + 4 * staged;

    const MemoryLevel &fast = device.memory[0], &l2 = device.memory[1], &dram = device.memory[2];
    const double products = (scores ? 1 : 0) + (has_values ? 1 : 0);
    const double of_scores = products == 2 ? 0 : all_rows * problem.heads * workload.keys * bytes;
    const double unique = (images * workload.keys * products + all_rows * 2) * problem.heads * dim * bytes + of_scores;
    const double block_bytes = steps * block_keys * dim * bytes * (score_passes + (has_values ? 1 : 0));
    sink.time("global", unique / (dram.gb_per_s * 1e3));
    sink.time("L2", (blocks * block_bytes + of_scores) / (l2.gb_per_s * 1e3));
    sink.time("shared", block_turns * steps * threads * (loads * 16 + staged * 4) / (fast.gb_per_s * 1e3));
    const double warps_at_once = std::ceil(block_turns * warps / 4) * 4;
    sink.time("compute", device.alpha_us * operations * steps * warps_at_once + rounds * device.gamma_us);
    // A block waits for the list and its keys before each tile.
    sink.time("latency", rounds * steps * 2 * l2.latency_ns * 1e-3);
    sink.launches(device.launch_us * (score_passes == 2 ? 2 : 1));

    sink.count("blocks", blocks);
    sink.count("threads", threads);
    sink.count("registers", registers);
    sink.count("shared_bytes", shared);
    sink.count("resident", resident);
    sink.count("rounds", rounds);
    sink.count("idle", 1 - blocks / (rounds * everywhere));
    sink.count("unique_bytes", unique);
    sink.count("operations", multiply_adds * steps);
    sink.count("other_operations", (operations - multiply_adds) * steps);
}

}  // namespace distile

#endif
