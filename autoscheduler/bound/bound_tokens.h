/** \file
 * The terms of the bound for operators that read keys, on a CPU. A sink gets them as from add_cpu_terms().
 *
 * The loop nest, outermost first: heads and blocks of rows (parallel); blocks of keys, where there are some; then for
 * scores register tiles of rows, of keys, and the channels of a head; the softmax; and for values register tiles of
 * rows, of channels, and the keys (schedules/cpu_tokens.cpp). The blocks of rows are those that distile_call_row_blocks
 * makes, with as many rows in every image.
 */
#ifndef DISTILE_BOUND_TOKENS_H
#define DISTILE_BOUND_TOKENS_H

#include "autoscheduler/bound/bound_cpu.h"
#include "autoscheduler/bound/knobs.h"
#include "schedules/token_space.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace distile {

/** `unroll` means channels of scores, or the keys of a product with values alone. */
DISTILE_BOUND_KNOBS(TokenKnobs, rows, row_vectors, score_keys, unroll, value_rows, value_vectors, value_unroll,
                    key_vectors, score_rows, value_keys, softmax_keys);

template<typename Sink>
void add_token_terms(const Workload &workload, const TokenKnobs &theta, int64_t tiles, Sink &sink) {
    const Problem &problem = workload.problem;
    const DeviceProfile &device = workload.device;
    const double cycle_us = 1e-3 / device.ghz, lanes = problem.vector_lanes;
    const double keys = workload.keys, dim = problem.head_dim;
    const bool scores = problem.product != TokenProduct::Values, has_values = problem.product != TokenProduct::Scores;

    // The blocks with which the threads end soonest.
    const int row_step = !scores      ? theta.value_rows
                         : has_values ? theta.row_vectors * problem.vector_lanes
                                      : theta.score_rows;
    const double image_rows = std::ceil(static_cast<double>(tiles) / workload.batch);
    const int more = more_rows(problem.product);
    double rows = row_step, tasks = 0, rounds = 0;
    for (int candidate = row_step; candidate <= theta.rows; candidate += row_step) {
        const double blocks = std::ceil(image_rows / candidate) * workload.batch * problem.heads;
        const double candidate_rounds = std::ceil(blocks / workload.threads);
        if (candidate == row_step || candidate_rounds * (candidate + more) <= rounds * (rows + more)) {
            rows = candidate;
            tasks = blocks;
            rounds = candidate_rounds;
        }
    }
    const double used_rows = std::min(rows, image_rows);

    double operations = 0, loads = 0, iterations = 0, steps = 0, other_cycles = 0, sums = 0;
    if (scores) {
        // Attention has rows in vector lanes, scores alone have keys.
        const double vectors = has_values ? theta.row_vectors : theta.key_vectors,
                     others = has_values ? theta.score_keys : theta.score_rows;
        const double lane_vectors = std::ceil((has_values ? used_rows : keys) / (vectors * lanes)) * vectors;
        const double of_tiles = lane_vectors / vectors * std::ceil((has_values ? keys : used_rows) / others) * dim;
        operations += of_tiles * vectors * others;
        loads += of_tiles * (vectors + others + loaded_pointers(others, others));
        iterations += of_tiles / theta.unroll;
        steps += of_tiles;
        sums = vectors * others;
        // Measured on a CPU, in a log that is not kept: transposing a token takes more than a cycle a channel, and a
        // register tile begins with finding its tokens. The softmax has an exponential of each score.
        constexpr double transpose_cycles = 1.2, softmax_cycles = 14, token_cycles = 12;
        other_cycles += lane_vectors * lanes * dim * transpose_cycles + of_tiles / dim * others * token_cycles;
        other_cycles += has_values ? lane_vectors * keys * softmax_cycles : used_rows * lane_vectors;
    }
    if (has_values) {
        const double channels = theta.value_vectors * lanes;
        const double of_tiles = std::ceil(used_rows / theta.value_rows) * std::ceil(dim / channels) * keys;
        operations += of_tiles * theta.value_rows * theta.value_vectors;
        loads += of_tiles * (theta.value_rows + theta.value_vectors);
        // Each block of keys adds to sums in memory.
        loads += theta.value_keys == 0 ? 0 : of_tiles / theta.value_keys * 2 * theta.value_rows * theta.value_vectors;
        iterations += of_tiles / std::max(scores ? theta.value_unroll : theta.unroll, 1);
        steps += of_tiles;
        sums = std::max(sums, static_cast<double>(theta.value_rows) * theta.value_vectors);
    }
    sink.time("fma", rounds * (device.alpha_us * operations + other_cycles * cycle_us + device.gamma_us));
    sink.time("dependence", rounds * steps * device.fma_latency * cycle_us);
    sink.time("load", rounds * loads / device.load_per_cycle * cycle_us);
    sink.time("loop", rounds * iterations * 2 * cycle_us);

    // Bytes: a block of rows reads all keys of its head, and its scores stay near. With blocks of keys, each row keeps
    // a partial result for each block.
    const double bytes = problem.bytes_per_element, products = (scores ? 1 : 0) + (has_values ? 1 : 0);
    const double near_keys = theta.softmax_keys == 0 ? keys : std::min<double>(keys, theta.softmax_keys);
    const double head_keys = keys * dim * bytes * products, block_scores = used_rows * near_keys * 4 * products;
    const double parts = theta.softmax_keys == 0 ? 0 : used_rows * (dim + 2) * 4 * std::ceil(keys / theta.softmax_keys);
    const double block_rows = 2 * used_rows * dim * bytes + 2 * parts;
    const double all = (workload.batch * head_keys + 2.0 * static_cast<double>(tiles) * dim * bytes) * problem.heads;
    const double cores = std::min<double>(tasks, workload.threads);
    // Register tiles of rows read the values of a block in turn, or of all keys.
    const double near_bytes = theta.softmax_keys != 0 ? near_keys * dim * bytes : head_keys;
    const double row_tiles_of_values =
        has_values && theta.value_keys == 0 ? std::ceil(used_rows / std::max(theta.value_rows, 1)) : 1;
    const auto core_traffic = [&](double room) {
        const double read = near_bytes <= room ? head_keys : head_keys * row_tiles_of_values;
        const bool are_near = theta.softmax_keys != 0 && near_bytes + block_scores <= room;
        const double of_scores = are_near ? 0 : block_scores * keys / std::max(near_keys, 1.0);
        return rounds * (read + 2 * of_scores + block_rows);
    };
    add_memory_times(device, cores, all, head_keys + block_scores + block_rows, core_traffic,
                     [&](const char *name, double us) { sink.time(name, us); });
    add_task_counts(workload, {tasks, rounds, used_rows, operations, loads, iterations, sums}, sink);
    sink.count("unrolled", std::max(1.0, theta.unroll * sums));
}

}  // namespace distile

#endif
