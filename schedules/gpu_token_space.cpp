#include "schedules/gpu_token_space.h"
#include "schedules/tile_knobs.h"
#include <algorithm>

namespace distile {

namespace {

constexpr int channel_lanes = 4;

std::string describe_gpu_token(const Theta &theta) {
    return "blocks of " + count_of(theta, "block_rows", "row") + ", " + count_of(theta, "block_keys", "key") +
           " staged at once; threads of " + count_of(theta, "thread_rows", "row");
}

int thread_keys(const Theta &theta) {
    return theta.at("block_keys") / key_threads;
}

}  // namespace

int token_threads(const Theta &theta) {
    return key_threads * (theta.at("block_rows") / theta.at("thread_rows"));
}

int vectors_per_thread(const Problem &problem) {
    return round_up(problem.head_dim / channel_lanes, key_threads) / key_threads;
}

int staged_row(const Problem &problem) {
    return problem.head_dim + channel_lanes;
}

int64_t token_shared_bytes(const Theta &theta, const Problem &problem) {
    const int64_t rows = theta.at("block_rows"), keys = theta.at("block_keys");
    const int64_t of_keys = problem.product == TokenProduct::Values ? 0 : keys * staged_row(problem);
    const int64_t of_values = problem.product == TokenProduct::Scores ? 0 : keys * problem.head_dim;
    // Besides the products, each row has two numbers of each of its threads before its softmax is complete.
    const int64_t floats = std::max(of_keys + of_values + rows * keys, of_keys + rows * key_threads * 2);
    return floats * int64_t{sizeof(float)};
}

int token_registers(const Theta &theta, const Problem &problem) {
    const int rows = theta.at("thread_rows"), keys = thread_keys(theta);
    const int channels = vectors_per_thread(problem) * channel_lanes;
    const int of_scores = rows * keys + (rows + keys) * channel_lanes, of_values = rows * channels + rows + channels;
    return problem.product == TokenProduct::Scores   ? of_scores
           : problem.product == TokenProduct::Values ? of_values
                                                     : std::max(of_scores + rows * channels, of_values);
}

const Space &gpu_token_space() {
    static const Space space{
        {
            // A plan's variants have granularities; those of tokens are single tokens.
            {"tile_h", "height of a tile, a token", {1}},
            {"tile_w", "width of a tile, a token", {1}},
            {"block_rows", "rows per block", {8, 16, 32, 64, 128}},
            {"block_keys", "keys staged at once", {8, 16, 32, 64}},
            {"thread_rows", "rows per thread", {1, 2, 4, 8}},
        },
        {
            tile_of_one_token(),
            {"block_rows that thread_rows divide, at most 8 of them",
             [](const Theta &theta, const Problem &) {
                 return theta.at("block_rows") % theta.at("thread_rows") == 0 && theta.at("thread_rows") <= key_threads;
             },
             {"block_rows", "thread_rows"}},
            {"block_keys that are multiples of 8",
             [](const Theta &theta, const Problem &) { return theta.at("block_keys") % key_threads == 0; },
             {"block_keys"}},
            {"32 to 1024 threads per block (256 in OpenCL), in whole warps",
             [](const Theta &theta, const Problem &problem) {
                 return token_threads(theta) <= problem.most_threads && token_threads(theta) % 32 == 0;
             },
             {"block_rows", "thread_rows"}},
            {"sums and operands that fit a thread's 255 registers and, for all threads, a multiprocessor's 65536",
             [](const Theta &theta, const Problem &problem) {
                 const int registers = token_registers(theta, problem) + 32;
                 return registers <= 255 && registers * token_threads(theta) <= 65536;
             },
             {"block_rows", "block_keys", "thread_rows"}},
            {"staged keys, values and products that fit 48 KB of shared memory (32 KB in OpenCL)",
             [](const Theta &theta, const Problem &problem) {
                 return token_shared_bytes(theta, problem) <= problem.most_shared_bytes;
             },
             {"block_rows", "block_keys"}},
        },
        describe_gpu_token,
        {}};
    return space;
}

}  // namespace distile
