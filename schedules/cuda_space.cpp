#include "schedules/cuda_space.h"
#include "schedules/tile_knobs.h"
#include <algorithm>

namespace distile {

namespace {

/** A tile's extents in virtual pixels. */
int tile_rows(const Theta &theta, const Problem &problem) {
    return theta.at("tile_h") / problem.scale_h;
}

int tile_columns(const Theta &theta, const Problem &problem) {
    return theta.at("tile_w") / problem.scale_w;
}

int pixels_per_tile(const Theta &theta, const Problem &problem) {
    return tile_rows(theta, problem) * tile_columns(theta, problem);
}

/** Taps staged at once. */
int staged_taps(const Theta &theta, const Problem &problem) {
    return theta.at("halo") ? problem.kernel_h * problem.kernel_w : 1;
}

int divide_up(int a, int b) {
    return (a + b - 1) / b;
}

std::string describe_cuda(const Theta &theta) {
    return "tiles of " + extents_of(theta, "tile_h", "tile_w") + "; blocks of " +
           count_of(theta, "block_pixels", "pixel") + " x " + count_of(theta, "block_channels", "channel") +
           ", threads of " + extents_of(theta, "thread_pixels", "thread_channels") + "; reduction in " +
           count_of(theta, "splits", "part") + ", " + count_of(theta, "chunk", "input channel") + " staged at once" +
           (value_of(theta, "halo") != 0 ? " for whole windows" : "") +
           (value_of(theta, "prefetch") != 0 ? ", one ahead" : "") + "; weights through " +
           (value_of(theta, "weights_staged") != 0 ? "shared memory" : "the cache");
}

}  // namespace

int padded_channels(const OperatorFacts &op) {
    return group_blocks(op, GroupReaders::Threads).count() * op.channel_block;
}

int channel_threads(const Theta &theta) {
    return theta.at("block_channels") / theta.at("thread_channels");
}

int pixel_threads(const Theta &theta) {
    return theta.at("block_pixels") / theta.at("thread_pixels");
}

int block_threads(const Theta &theta) {
    return channel_threads(theta) * pixel_threads(theta);
}

int window_width(const Theta &theta, const Problem &problem) {
    return (tile_columns(theta, problem) - 1) * problem.stride_w + (problem.kernel_w - 1) * problem.dilation_w + 1;
}

int window_height(const Theta &theta, const Problem &problem) {
    return (tile_rows(theta, problem) - 1) * problem.stride_h + (problem.kernel_h - 1) * problem.dilation_h + 1;
}

int staged_pixels(const Theta &theta, const Problem &problem) {
    const int pixels = theta.at("block_pixels");
    return theta.at("halo")
               ? pixels / pixels_per_tile(theta, problem) * window_width(theta, problem) * window_height(theta, problem)
               : pixels;
}

int looked_up_tiles(const Theta &theta, const Problem &problem) {
    const int pixels = theta.at("block_pixels"), tile = pixels_per_tile(theta, problem);
    // A block without windows may start inside a tile.
    int tiles = pixels % tile == 0 ? pixels / tile : (pixels - 2) / tile + 2;
    if (theta.at("halo")) {
        const int vectors = theta.at("chunk") / input_lanes(theta, problem);
        const int all_turns = round_up(staged_pixels(theta, problem) * vectors, block_threads(theta));
        tiles = divide_up(all_turns, window_width(theta, problem) * window_height(theta, problem) * vectors);
    }
    return round_up(tiles, 4);
}

int input_lanes(const Theta &theta, const Problem &problem) {
    const int aligned = 16 / problem.bytes_per_element, chunk = theta.at("chunk");
    if (problem.in_channels % aligned != 0) {
        return 1;
    }
    const bool shared_equally =
        theta.at("halo") || theta.at("block_pixels") * chunk / aligned % block_threads(theta) == 0;
    return chunk % aligned == 0 && shared_equally ? aligned : problem.vector_lanes;
}

int64_t shared_bytes(const Theta &theta, const Problem &problem) {
    const int64_t chunk = theta.at("chunk"), padding = theta.at("padding"), pixels = staged_pixels(theta, problem);
    // Transposed, the pixels of a window row are contiguous or, without windows, those of the block.
    const int64_t row = theta.at("halo") ? window_width(theta, problem) : pixels;
    const int64_t inputs =
        theta.at("transposed") ? chunk * (pixels / row) * (row + padding) : (chunk + padding) * pixels;
    const int64_t weights =
        theta.at("weights_staged") ? chunk * theta.at("block_channels") * staged_taps(theta, problem) : 0;
    const int64_t lookups = looked_up_tiles(theta, problem), bytes_of_lookup = 8;
    return inputs * int64_t{sizeof(float)} + weights * problem.bytes_per_weight + lookups * bytes_of_lookup;
}

int sum_registers(const Theta &theta) {
    const int pixels = theta.at("thread_pixels"), channels = theta.at("thread_channels");
    return pixels * channels + pixels + channels;
}

int prefetch_registers(const Theta &theta, const Problem &problem) {
    if (!theta.at("prefetch")) {
        return 0;
    }
    const int inputs = theta.at("chunk") * staged_pixels(theta, problem);
    const int weights =
        theta.at("weights_staged") ? theta.at("chunk") * theta.at("block_channels") * staged_taps(theta, problem) : 0;
    const int threads = block_threads(theta), lanes = std::max(input_lanes(theta, problem), problem.vector_lanes);
    const auto registers = [](int elements, int bytes) { return divide_up(elements * bytes, 4); };
    return registers(divide_up(inputs, threads * lanes) * lanes, problem.bytes_per_element) +
           registers(divide_up(weights, threads * problem.vector_lanes) * problem.vector_lanes,
                     problem.bytes_per_weight);
}

namespace {

std::vector<Knob> make_knobs() {
    return {
        tile_height(),
        tile_width(),
        {"block_pixels", "virtual pixels per block", {16, 32, 64, 128, 256}},
        {"block_channels", "output channels per block", {32, 64, 128, 256}},
        {"thread_pixels", "virtual pixels per thread", {2, 4, 8, 16}},
        {"thread_channels", "output channels per thread", {4, 8, 16}},
        {"chunk", "input channels staged at once", {1, 2, 3, 4, 8, 16, 32, 64}},
        {"splits", "blocks that share the reduction", {1, 2, 4, 8, 16}},
        {"weights_staged", "1 if weights go through shared memory, 0 if only through the cache", {0, 1}},
        {"transposed", "1 if the pixels of a staged channel are contiguous, 0 if the channels of a pixel are", {0, 1}},
        {"padding", "elements between the rows of the staged inputs, to avoid bank conflicts", {0, 4}},
        {"prefetch", "1 to load the next stage while computing with the current one", {0, 1}},
        {"halo",
         "1 to stage whole windows of the input and all positions of the kernel, 0 to stage each position again",
         {0, 1}},
    };
}

/** What blocks and their threads compute. */
std::vector<Constraint> block_constraints() {
    return {{"thread_channels that are whole vectors of 4, and thread_pixels that are 1, 2 or whole vectors of 4",
             [](const Theta &theta, const Problem &) {
                 const int pixels = theta.at("thread_pixels");
                 return theta.at("thread_channels") % 4 == 0 && (pixels <= 2 || pixels % 4 == 0);
             },
             {"thread_channels", "thread_pixels"}},
            {"block_pixels and block_channels that thread_pixels and thread_channels divide",
             [](const Theta &theta, const Problem &) {
                 return theta.at("block_pixels") % theta.at("thread_pixels") == 0 &&
                        theta.at("block_channels") % theta.at("thread_channels") == 0;
             },
             {"block_pixels", "thread_pixels", "block_channels", "thread_channels"}},
            {"block_channels that are whole blocks of the weights and divide the output channels of a group, rounded "
             "up to whole blocks",
             [](const Theta &theta, const Problem &problem) {
                 const int channels = theta.at("block_channels"),
                           padded = round_up(problem.out_channels / problem.groups, problem.channel_block);
                 return padded % channels == 0 && channels % problem.channel_block == 0;
             },
             {"block_channels"}},
            // The third dimension of the blocks is that of the groups, or that of the parts.
            {"no splits if groups are padded",
             [](const Theta &theta, const Problem &problem) {
                 return theta.at("splits") == 1 || !pads_groups(problem, GroupReaders::Threads);
             },
             {"splits"}},
            // Halide does not see that a block's window belongs to one phase.
            {"no splits and no halo if the operator has phases",
             [](const Theta &theta, const Problem &problem) {
                 return problem.phases() == 1 || (theta.at("splits") == 1 && !theta.at("halo"));
             },
             {"splits", "halo"}},
            {"32 to 1024 threads per block (256 in OpenCL), in whole warps",
             [](const Theta &theta, const Problem &problem) {
                 return block_threads(theta) <= problem.most_threads && block_threads(theta) % 32 == 0;
             },
             {"block_pixels", "block_channels", "thread_pixels", "thread_channels"}}};
}

/** What blocks stage, and the memory and registers that it takes. */
std::vector<Constraint> staging_constraints() {
    return {{"a chunk that divides the input channels of a split",
             [](const Theta &theta, const Problem &problem) {
                 return problem.in_channels % (theta.at("chunk") * theta.at("splits")) == 0;
             },
             {"chunk", "splits"}},
            {"a chunk and padding that are whole vectors of 4, if the input channels are whole vectors of 16 bytes",
             [](const Theta &theta, const Problem &problem) {
                 return problem.in_channels % (16 / problem.bytes_per_element) != 0 ||
                        (theta.at("chunk") % problem.vector_lanes == 0 &&
                         theta.at("padding") % problem.vector_lanes == 0);
             },
             {"chunk", "padding"}},
            {"threads that stage equal shares of a chunk of the block's pixels, if halo is 0",
             [](const Theta &theta, const Problem &problem) {
                 return theta.at("halo") || theta.at("block_pixels") * theta.at("chunk") / input_lanes(theta, problem) %
                                                    block_threads(theta) ==
                                                0;
             },
             {"block_pixels", "block_channels", "thread_pixels", "thread_channels", "chunk", "halo"}},
            {"block_pixels of whole tiles if halo is 1",
             [](const Theta &theta, const Problem &problem) {
                 return !theta.at("halo") || theta.at("block_pixels") % pixels_per_tile(theta, problem) == 0;
             },
             {"tile_h", "tile_w", "block_pixels", "halo"}},
            {"a chunk of at most 64 channels times kernel columns if halo is 1, because they are unrolled",
             [](const Theta &theta, const Problem &problem) {
                 return !theta.at("halo") || int64_t{theta.at("chunk")} * problem.kernel_w <= 64;
             },
             {"chunk", "halo"}},
            {"windows of at most 65536 pixels per block if halo is 1",
             [](const Theta &theta, const Problem &problem) {
                 return !theta.at("halo") || int64_t{window_width(theta, problem)} * window_height(theta, problem) *
                                                     (theta.at("block_pixels") / pixels_per_tile(theta, problem)) <=
                                                 65536;
             },
             {"tile_h", "tile_w", "block_pixels", "halo"}},
            {"sums, operands and what is prefetched that fit a thread's 255 registers and, for all threads, a "
             "multiprocessor's 65536",
             [](const Theta &theta, const Problem &problem) {
                 const int registers = sum_registers(theta) + prefetch_registers(theta, problem) + 32;
                 return registers <= 255 && registers * block_threads(theta) <= 65536;
             },
             {"tile_h", "tile_w", "block_pixels", "block_channels", "thread_pixels", "thread_channels", "chunk",
              "weights_staged", "prefetch", "halo"}},
            {"staged inputs and weights that fit 48 KB of shared memory (32 KB in OpenCL)",
             [](const Theta &theta, const Problem &problem) {
                 return shared_bytes(theta, problem) <= problem.most_shared_bytes;
             },
             {"tile_h", "tile_w", "block_pixels", "block_channels", "thread_pixels", "thread_channels", "chunk",
              "weights_staged", "transposed", "padding", "halo"}}};
}

Space make_space() {
    Space space{make_knobs(), {tile_of_whole_phases(), tile_of_at_most_4096_pixels()}, describe_cuda, {}};
    for (const std::vector<Constraint> &more : {block_constraints(), staging_constraints()}) {
        space.constraints.insert(space.constraints.end(), more.begin(), more.end());
    }
    return space;
}

}  // namespace

const Space &cuda_space() {
    static const Space space = make_space();
    return space;
}

Problem cuda_problem(const OperatorFacts &op) {
    Problem problem{op};
    problem.vector_lanes = 16 / int{sizeof(float)};
    problem.most_threads = 1024;
    problem.most_shared_bytes = 48 << 10;
    return problem;
}

Problem opencl_problem(const OperatorFacts &op) {
    Problem problem = cuda_problem(op);
    problem.most_threads = 256;
    problem.most_shared_bytes = 32 << 10;
    return problem;
}

}  // namespace distile
