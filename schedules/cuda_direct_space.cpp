#include "schedules/cuda_direct_space.h"
#include "schedules/depthwise_space.h"
#include "schedules/tile_knobs.h"
#include <cstdint>

namespace distile {

namespace {

int64_t num_threads(const Theta &theta) {
    return int64_t{theta.at("block_pixels")} / theta.at("thread_pixels") * theta.at("block_channels") /
           theta.at("thread_channels");
}

std::string describe_cuda_direct(const Theta &theta) {
    return "tiles of " + extents_of(theta, "tile_h", "tile_w") + "; blocks of " +
           count_of(theta, "block_pixels", "pixel") + " x " + count_of(theta, "block_channels", "channel") +
           ", threads of " + extents_of(theta, "thread_pixels", "thread_channels") + "; input read in place; " +
           unrolled_part(theta) + " unrolled";
}

}  // namespace

bool runs_direct(const OperatorFacts &op) {
    const bool has_whole_blocks = op.groups == 1 || op.out_channels / op.groups % op.channel_block == 0;
    return op.depthwise || (!has_whole_blocks && !pads_groups(op, GroupReaders::Threads));
}

const Space &cuda_direct_space() {
    static const Space space{
        {
            tile_height(),
            tile_width(),
            {"block_pixels", "virtual pixels per block", {1, 2, 4, 8, 16, 32, 64, 128}},
            {"block_channels", "output channels per block", {8, 16, 32, 64, 96, 128, 192, 256, 512}},
            {"thread_pixels", "virtual pixels per thread", {1, 2, 3, 4, 6, 8}},
            {"thread_channels", "output channels per thread", {4, 8, 16}},
            {"unroll", "what is unrolled: 0 for nothing, 1 for a kernel row, 2 for the kernel", {0, 1, 2}},
        },
        {
            tile_of_at_most_4096_pixels(),
            {"thread_channels that are whole vectors of 4",
             [](const Theta &theta, const Problem &problem) {
                 return theta.at("thread_channels") % problem.vector_lanes == 0;
             },
             {"thread_channels"}},
            {"block_pixels and block_channels that thread_pixels and thread_channels divide",
             [](const Theta &theta, const Problem &) {
                 return theta.at("block_pixels") % theta.at("thread_pixels") == 0 &&
                        theta.at("block_channels") % theta.at("thread_channels") == 0;
             },
             {"block_pixels", "thread_pixels", "block_channels", "thread_channels"}},
            {"block_channels that leave no block beyond the channels",
             [](const Theta &theta, const Problem &problem) {
                 return theta.at("block_channels") <= round_up(problem.out_channels, problem.channel_block);
             },
             {"block_channels"}},
            {"32 to 1024 threads per block (256 in OpenCL), in whole warps",
             [](const Theta &theta, const Problem &problem) {
                 return num_threads(theta) <= problem.most_threads && num_threads(theta) % 32 == 0;
             },
             {"block_pixels", "block_channels", "thread_pixels", "thread_channels"}},
            {"at most 64 sums per thread",
             [](const Theta &theta, const Problem &) {
                 return theta.at("thread_pixels") * theta.at("thread_channels") <= 64;
             },
             {"thread_pixels", "thread_channels"}},
            {"an unroll from 0 to 2",
             [](const Theta &theta, const Problem &) { return theta.at("unroll") <= UnrollKernel; },
             {"unroll"}},
            {"at most 40 unrolled taps times pixels per thread, because all of their inputs are in flight at once",
             [](const Theta &theta, const Problem &problem) {
                 return unrolled_taps(static_cast<KernelUnroll>(theta.at("unroll")), problem) *
                            theta.at("thread_pixels") <=
                        40;
             },
             {"thread_pixels", "unroll"}},
        },
        describe_cuda_direct,
        {}};
    return space;
}

}  // namespace distile
