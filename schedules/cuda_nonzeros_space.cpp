#include "schedules/cuda_nonzeros_space.h"
#include "schedules/tile_knobs.h"

namespace distile {

namespace {

constexpr int least_channels = 16;

std::string describe_cuda_nonzeros(const Theta &theta) {
    return "tiles of " + extents_of(theta, "tile_h", "tile_w") + "; nonzero weights, blocks of " +
           count_of(theta, "pixels", "pixel") + " and " + count_of(theta, "channels", "output channel") +
           (theta.at("splits") > 1 ? ", reduction in " + count_of(theta, "splits", "part") : "");
}

}  // namespace

const Space &cuda_nonzeros_space() {
    static const Space space = [] {
        const Knob pixels = {"pixels", "output pixels of a block", {32, 64, 128}};
        const Knob splits = {"splits", "parts of the reduction, for blocks that share an output", {1, 2, 4, 8}};
        const Knob channels = {"channels", "output channels of a block", {16, 32, 64, 128}};
        return Space{
            {{"tile_h", "height of a tile in output pixels", {1, 2, 4, 8}},
             {"tile_w", "width of a tile in output pixels", {1, 2, 4, 8, 16}},
             pixels,
             channels,
             splits},
            {one_of(pixels),
             one_of(channels),
             one_of(splits),
             {"channels that leave less than half of a block empty",
              [](const Theta &theta, const Problem &problem) {
                  const int in_block = theta.at("channels");
                  return in_block <= least_channels || in_block / 2 < nonzero_sections(problem).padded_outputs();
              },
              {"channels"}},
             {"parts of the reduction that have a chunk of 128 columns each",
              [](const Theta &theta, const Problem &problem) {
                  const int quads = (nonzero_sections(problem).inputs() + 3) / 4 * problem.kernel_h * problem.kernel_w;
                  return theta.at("splits") <= (quads + 31) / 32;
              },
              {"splits"}},
             tile_of_at_most_4096_pixels()},
            describe_cuda_nonzeros,
            {}};
    }();
    return space;
}

}  // namespace distile
