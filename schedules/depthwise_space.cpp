#include "schedules/depthwise_space.h"
#include "schedules/cpu_space.h"
#include "schedules/tile_knobs.h"
#include <algorithm>

namespace distile {

namespace {

std::string describe_depthwise(const Theta &theta) {
    return "tiles of " + extents_of(theta, "tile_h", "tile_w") + "; register tiles of " +
           count_of(theta, "pixels", "pixel") + " x " + count_of(theta, "channels", "channel") + "; " +
           count_of(theta, "tasks", "task") + " a thread; " + unrolled_part(theta) + " unrolled";
}

}  // namespace

std::string unrolled_part(const Theta &theta) {
    const char *const parts[] = {"nothing", "a kernel row", "the kernel"};
    return parts[std::clamp<int>(value_of(theta, "unroll"), UnrollNothing, UnrollKernel)];
}

int64_t unrolled_taps(KernelUnroll unroll, const OperatorFacts &op) {
    return int64_t{unroll == UnrollNothing ? 1 : op.kernel_w} * (unroll == UnrollKernel ? op.kernel_h : 1);
}

const Space &cpu_depthwise_space() {
    static const Space space{
        {
            tile_height(),
            tile_width(),
            {"pixels", "virtual pixels in a register tile", {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14}},
            {"channels", "channels in a register tile", {8, 16, 24, 32, 48, 64, 96, 128}},
            {"tasks", "tasks into which a thread's share of the pixels is split", {1, 2, 4, 8}},
            {"unroll", "what is unrolled: 0 for nothing, 1 for a kernel row, 2 for the kernel", {0, 1, 2}},
        },
        {
            {"channels that are whole vectors and whole groups",
             [](const Theta &theta, const Problem &problem) {
                 return theta.at("channels") % problem.vector_lanes == 0 &&
                        theta.at("channels") % num_diagonals(problem) == 0;
             },
             {"channels"}},
            {"channels that divide the operator's, rounded up to whole blocks of the weights",
             [](const Theta &theta, const Problem &problem) {
                 return round_up(problem.out_channels, problem.channel_block) % theta.at("channels") == 0;
             },
             {"channels"}},
            // The fewest sums that groups side by side can have are always legal.
            {"pixels times channels, times the channels of a group, that fit the vector registers, or one pixel",
             [](const Theta &theta, const Problem &problem) {
                 const int pixels = theta.at("pixels"), diagonals = num_diagonals(problem);
                 const int vectors = theta.at("channels") / problem.vector_lanes;
                 return vectors_held(pixels, diagonals) * vectors <= problem.vector_registers ||
                        (diagonals > 1 && pixels == 1 &&
                         theta.at("channels") == std::max(problem.vector_lanes, diagonals));
             },
             {"pixels", "channels"}},
            {"an unroll from 0 to 2",
             [](const Theta &theta, const Problem &) { return theta.at("unroll") <= UnrollKernel; },
             {"unroll"}},
            {"at most 64 unrolled taps, times the channels of a group, or the code grows beyond the instruction cache",
             [](const Theta &theta, const Problem &problem) {
                 return unrolled_taps(static_cast<KernelUnroll>(theta.at("unroll")), problem) *
                            num_diagonals(problem) <=
                        64;
             },
             {"unroll"}},
            tile_of_at_most_4096_pixels(),
        },
        describe_depthwise,
        {}};
    return space;
}

}  // namespace distile
