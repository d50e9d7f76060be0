#include "schedules/cpu_space.h"
#include "schedules/tile_knobs.h"
#include <algorithm>
#include <cstdint>

namespace distile {

namespace {

/** The registers of a register tile: its accumulators, a vector of weights per column, and one for the broadcast input
 * (rarely needed with AVX-512, the only one with 16 lanes, whose FMA broadcasts from memory). */
int tile_registers(const Theta &theta, const Problem &problem) {
    const int vectors = theta.at("channels") / problem.vector_lanes;
    return theta.at("pixels") * vectors + vectors + (problem.vector_lanes == 16 ? 0 : 1);
}

std::string describe_cpu(const Theta &theta) {
    const char *const orders[] = {"rows, columns, input channels", "input channels, rows, columns",
                                  "rows, input channels, columns"};
    return "tiles of " + extents_of(theta, "tile_h", "tile_w") + "; register tiles of " +
           count_of(theta, "pixels", "pixel") + " x " + count_of(theta, "channels", "channel") + "; up to " +
           std::to_string(value_of(theta, "group")) + " of them a task; output channels in " +
           count_of(theta, "channel_splits", "part") + "; reduction over " +
           orders[std::clamp<int>(value_of(theta, "order"), KyKxCi, KyCiKx)] + ", " +
           count_of(theta, "unroll", "input channel") + " unrolled";
}

}  // namespace

const Space &cpu_space() {
    static const Space space{
        {
            tile_height(),
            tile_width(),
            {"pixels", "virtual pixels in a register tile", {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                                             13, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30}},
            {"channels", "output channels in a register tile", {8, 16, 24, 32, 40, 48, 64, 112}},
            {"group",
             "register tiles that a task may run over before it takes the next channels",
             {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64}},
            {"channel_splits",
             "least parts into which the output channels are split for the threads",
             {1, 2, 4, 8, 16}},
            {"order", "nesting of the reduction: 0 for ky, kx, ci; 1 for ci, ky, kx; 2 for ky, ci, kx", {0, 1, 2}},
            {"unroll", "input channels that are unrolled", {1, 2, 4, 8, 16}},
        },
        {
            {"an order from 0 to 2",
             [](const Theta &theta, const Problem &) { return theta.at("order") <= KyCiKx; },
             {"order"}},
            {"channels that are whole vectors",
             [](const Theta &theta, const Problem &problem) {
                 return theta.at("channels") % problem.vector_lanes == 0;
             },
             {"channels"}},
            {"channels times channel_splits that divide the output channels, rounded up to whole blocks of the "
             "weights; "
             "where each group begins with a block, channels that do not reach beyond the group's last block, and "
             "channel_splits that divide the groups",
             [](const Theta &theta, const Problem &problem) {
                 const int channels = theta.at("channels"), splits = theta.at("channel_splits");
                 if (pads_groups(problem)) {
                     const GroupBlocks blocks = group_blocks(problem);
                     return round_up(blocks.group_outputs, channels) <= blocks.padded_outputs() &&
                            problem.groups % splits == 0;
                 }
                 const int padded = round_up(problem.out_channels, problem.channel_block);
                 return padded % (int64_t{channels} * splits) == 0;
             },
             {"channels", "channel_splits"}},
            {"pixels times channels that fit the vector registers",
             [](const Theta &theta, const Problem &problem) {
                 return tile_registers(theta, problem) <= problem.vector_registers;
             },
             {"pixels", "channels"}},
            {"an unroll that divides the input channels",
             [](const Theta &theta, const Problem &problem) { return problem.in_channels % theta.at("unroll") == 0; },
             {"unroll"}},
            {"at most 64 unrolled steps of the reduction, or the code grows beyond the instruction cache",
             [](const Theta &theta, const Problem &problem) {
                 const int64_t kernel = theta.at("order") == CiKyKx   ? problem.kernel_h * problem.kernel_w
                                        : theta.at("order") == KyCiKx ? problem.kernel_w
                                                                      : 1;
                 return theta.at("unroll") * kernel <= 64;
             },
             {"order", "unroll"}},
            tile_of_whole_phases(),
            tile_of_at_most_4096_pixels(),
        },
        describe_cpu,
        {
            {"the first of the orders that nest the loops alike",
             [](const Theta &theta, const Problem &problem) {
                 const bool one_column = problem.kernel_w == 1, one_tap = one_column && problem.kernel_h == 1;
                 return theta.at("order") == KyKxCi || (theta.at("order") == CiKyKx ? !one_tap : !one_column);
             },
             {"order"}},
        }};
    return space;
}

Problem cpu_problem(const OperatorFacts &op, int vector_lanes, int vector_registers) {
    Problem problem{op};
    // The runtime converts what many output channels read.
    problem.bytes_per_input = op.depthwise ? op.bytes_per_element : int{sizeof(float)};
    problem.vector_lanes = vector_lanes;
    problem.vector_registers = vector_registers;
    return problem;
}

}  // namespace distile
