#include "schedules/cuda_nonzeros_space.h"
#include "schedules/tile_knobs.h"

namespace distile {

namespace {

constexpr int least_channels = 16;

std::string describe_cuda_nonzeros(const Theta &theta) {
    return "tiles of " + extents_of(theta, "tile_h", "tile_w") + "; nonzero weights, blocks of " +
           count_of(theta, "pixels", "pixel") + " and " + count_of(theta, "channels", "output channel");
}

}  // namespace

const Space &cuda_nonzeros_space() {
    static const Space space = [] {
        const Knob pixels = {"pixels", "output pixels of a block", {32, 64, 128}};
        const Knob channels = {"channels", "output channels of a block", {16, 32, 64, 128}};
        return Space{{{"tile_h", "height of a tile in output pixels", {1, 2, 4, 8}},
                      {"tile_w", "width of a tile in output pixels", {1, 2, 4, 8, 16}},
                      pixels,
                      channels},
                     {one_of(pixels),
                      one_of(channels),
                      {"channels that leave less than half of a block empty",
                       [](const Theta &theta, const Problem &problem) {
                           const int in_block = theta.at("channels");
                           return in_block <= least_channels ||
                                  in_block / 2 < nonzero_sections(problem).padded_outputs();
                       },
                       {"channels"}},
                      tile_of_at_most_4096_pixels()},
                     describe_cuda_nonzeros,
                     {}};
    }();
    return space;
}

}  // namespace distile
