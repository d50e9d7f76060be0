#include "cuda_space.h"
#include <algorithm>

namespace distile {

namespace {

/** Elements of shared memory from one staged pixel, or channel if they are transposed, to the next. */
int staged_row(const Theta &theta) {
    return (theta.at("transposed") ? theta.at("block_pixels") : theta.at("chunk")) + theta.at("padding");
}

}  // namespace

int channel_threads(const Theta &theta) {
    return theta.at("block_channels") / theta.at("thread_channels");
}

int pixel_threads(const Theta &theta) {
    return theta.at("block_pixels") / theta.at("thread_pixels");
}

int block_threads(const Theta &theta) {
    return channel_threads(theta) * pixel_threads(theta);
}

int shared_bytes(const Theta &theta, const Problem &problem) {
    const int inputs = staged_row(theta) * (theta.at("transposed") ? theta.at("chunk") : theta.at("block_pixels"));
    const int weights = theta.at("weights_staged") ? theta.at("chunk") * theta.at("block_channels") : 0;
    const int lookups = 3 * theta.at("block_pixels");
    return (inputs + weights) * (16 / problem.vector_lanes) + lookups * 4;
}

int sum_registers(const Theta &theta) {
    const int pixels = theta.at("thread_pixels"), channels = theta.at("thread_channels");
    return pixels * channels + pixels + channels;
}

const Space &cuda_space() {
    static const Space space{
        "cuda",
        {
            {"tile_h", "height of a tile in output pixels", {1, 2, 3, 4, 5, 6, 8, 10, 16}},
            {"tile_w", "width of a tile in output pixels", {1, 2, 3, 4, 5, 6, 8, 10, 16}},
            {"block_pixels", "virtual pixels of a block", {16, 32, 64, 128, 256}},
            {"block_channels", "output channels of a block", {32, 64, 128, 256}},
            {"thread_pixels", "virtual pixels of a thread", {2, 4, 8, 16}},
            {"thread_channels", "output channels of a thread", {4, 8, 16}},
            {"chunk", "input channels that are staged at once", {1, 2, 3, 4, 8, 16, 32, 64}},
            {"splits", "blocks that share the reduction", {1, 2, 4, 8, 16}},
            {"weights_staged", "1 if weights go through shared memory, 0 if only through the cache", {0, 1}},
            {"transposed",
             "1 if the pixels of a staged channel are contiguous, 0 if the channels of a pixel are",
             {0, 1}},
            {"padding", "elements between the rows of the staged inputs, against conflicts of banks", {0, 4}},
            {"prefetch", "1 to load what is staged next while computing with what is staged now", {0, 1}},
        },
        {
            {"thread_channels that are whole vectors of 4, and thread_pixels that are 1, 2 or whole vectors of 4",
             [](const Theta &theta, const Problem &) {
                 const int pixels = theta.at("thread_pixels");
                 return theta.at("thread_channels") % 4 == 0 && (pixels <= 2 || pixels % 4 == 0);
             },
             {"thread_channels", "thread_pixels"}},
            {"block_pixels and block_channels that its thread_pixels and thread_channels divide",
             [](const Theta &theta, const Problem &) {
                 return theta.at("block_pixels") % theta.at("thread_pixels") == 0 &&
                        theta.at("block_channels") % theta.at("thread_channels") == 0;
             },
             {"block_pixels", "thread_pixels", "block_channels", "thread_channels"}},
            {"block_channels that divide the output channels, rounded up to whole blocks of the weights, and are "
             "such blocks themselves",
             [](const Theta &theta, const Problem &problem) {
                 const int channels = theta.at("block_channels"),
                           padded = round_up(problem.out_channels, problem.channel_block);
                 return padded % channels == 0 && channels % problem.channel_block == 0;
             },
             {"block_channels"}},
            {"32 to 1024 threads a block, in whole warps",
             [](const Theta &theta, const Problem &) {
                 return block_threads(theta) <= 1024 && block_threads(theta) % 32 == 0;
             },
             {"block_pixels", "block_channels", "thread_pixels", "thread_channels"}},
            {"a chunk that divides the input channels of a split",
             [](const Theta &theta, const Problem &problem) {
                 return problem.in_channels % (theta.at("chunk") * theta.at("splits")) == 0;
             },
             {"chunk", "splits"}},
            {"a chunk and padding that are whole vectors, where the input channels are",
             [](const Theta &theta, const Problem &problem) {
                 return problem.in_channels % problem.vector_lanes != 0 ||
                        (theta.at("chunk") % problem.vector_lanes == 0 &&
                         theta.at("padding") % problem.vector_lanes == 0);
             },
             {"chunk", "padding"}},
            {"threads that stage equal shares of a chunk of the block's pixels",
             [](const Theta &theta, const Problem &problem) {
                 const int lanes = problem.in_channels % problem.vector_lanes == 0 ? problem.vector_lanes : 1;
                 return theta.at("block_pixels") * theta.at("chunk") / lanes % block_threads(theta) == 0;
             },
             {"block_pixels", "block_channels", "thread_pixels", "thread_channels", "chunk"}},
            {"sums and operands that fit a thread's 255 registers and, for all threads, a multiprocessor's 65536",
             [](const Theta &theta, const Problem &) {
                 const int registers = sum_registers(theta) + 32;
                 return registers <= 255 && registers * block_threads(theta) <= 65536;
             },
             {"block_pixels", "block_channels", "thread_pixels", "thread_channels"}},
            {"staged inputs and weights that fit 48 KB of shared memory",
             [](const Theta &theta, const Problem &problem) { return shared_bytes(theta, problem) <= 48 * 1024; },
             {"block_pixels", "block_channels", "chunk", "weights_staged", "transposed", "padding"}},
            {"tiles of at most 4096 pixels",
             [](const Theta &theta, const Problem &) {
                 return int64_t{theta.at("tile_h")} * theta.at("tile_w") <= 4096;
             },
             {"tile_h", "tile_w"}},
        }};
    return space;
}

Problem cuda_problem(const OperatorFacts &op) {
    Problem problem{op};
    problem.vector_lanes = 16 / op.bytes_per_element;
    return problem;
}

}  // namespace distile
