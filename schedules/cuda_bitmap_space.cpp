#include "schedules/cuda_bitmap_space.h"
#include "kernels/cuda_bitmap/arguments.h"
#include "schedules/tile_knobs.h"

namespace distile {

namespace {

std::string describe_cuda_bitmap(const Theta &theta) {
    return "tiles of " + extents_of(theta, "tile_h", "tile_w") + "; bitmap of weights, blocks of " +
           count_of(theta, "pixels", "pixel") + " and " + count_of(theta, "channels", "output channel") +
           (theta.at("splits") > 1 ? ", reduction in " + count_of(theta, "splits", "part") : "") +
           (theta.at("ahead") > 0 ? ", weights fetched " + count_of(theta, "ahead", "unit") + " ahead" : "");
}

}  // namespace

const Space &cuda_bitmap_space() {
    static const Space space = [] {
        const Knob pixels = {"pixels", "output pixels of a block", {8, 16, 32, 64}};
        const Knob channels = {"channels", "output channels of a block", {16, 32, 64, 128}};
        const Knob ahead = {"ahead", "units whose weights are fetched early", {0, 2}};
        return Space{{{"tile_h", "height of a tile in output pixels", {1}},
                      {"tile_w", "width of a tile in output pixels", {1, 2, 4, 8}},
                      pixels,
                      channels,
                      {"splits", "parts of the reduction, for blocks that share an output", {1, 2, 4, 8, 16}},
                      ahead},
                     {one_of(pixels),
                      one_of(channels),
                      {"at least 32 output channels in a block of 32 pixels, and 64 in one of 64",
                       [](const Theta &theta, const Problem &) {
                           return cuda_bitmap::has_blocks(theta.at("pixels"), theta.at("channels"));
                       },
                       {"pixels", "channels"}},
                      {"channels that leave less than half of a block empty",
                       [](const Theta &theta, const Problem &problem) {
                           return theta.at("channels") <= DISTILE_BITMAP_ROWS ||
                                  theta.at("channels") / 2 < problem.out_channels;
                       },
                       {"channels"}},
                      {"parts of the reduction that have a unit of 128 columns each",
                       [](const Theta &theta, const Problem &problem) {
                           return theta.at("splits") <=
                                  (problem.in_channels + DISTILE_BITMAP_COLUMNS - 1) / DISTILE_BITMAP_COLUMNS;
                       },
                       {"splits"}},
                      tile_of_at_most_4096_pixels()},
                     describe_cuda_bitmap,
                     {}};
    }();
    return space;
}

}  // namespace distile
