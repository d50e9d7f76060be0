#include "schedules/cuda_two_four_space.h"
#include "kernels/cuda_two_four/arguments.h"
#include "schedules/tile_knobs.h"

namespace distile {

namespace {

std::string describe_cuda_two_four(const Theta &theta) {
    return "tiles of " + extents_of(theta, "tile_h", "tile_w") + "; weights of the pattern 2:4, blocks of " +
           count_of(theta, "pixels", "pixel") + " and " + count_of(theta, "channels", "output channel") +
           (theta.at("splits") > 1 ? ", reduction in " + count_of(theta, "splits", "part") : "");
}

Space two_four_space_of(cuda_two_four::Cores cores) {
    const bool is_sm90 = cores == cuda_two_four::Cores::Sm90;
    const Knob pixels = {"pixels", "output pixels of a block",
                         is_sm90 ? std::vector<int>{64, 128, 256} : std::vector<int>{64, 128}};
    const Knob channels = {"channels", "output channels of a block",
                           is_sm90 ? std::vector<int>{64, 128, 256} : std::vector<int>{64, 128}};
    return Space{
        {{"tile_h", "height of a tile in output pixels", {1}},
         {"tile_w", "width of a tile in output pixels", {1, 2, 4, 8}},
         pixels,
         channels,
         {"splits", "parts of the reduction, for blocks that share an output", {1, 2, 3, 4, 6, 8}}},
        {one_of(pixels),
         one_of(channels),
         {"blocks that kernels have: 256 pixels with 128 output channels, and 256 output channels with 128 pixels",
          [cores](const Theta &theta, const Problem &) {
              return cuda_two_four::has_blocks(cores, theta.at("pixels"), theta.at("channels"));
          },
          {"pixels", "channels"}},
         {"channels that leave less than half of a block empty",
          [](const Theta &theta, const Problem &problem) {
              return theta.at("channels") <= DISTILE_TWO_FOUR_ROWS || theta.at("channels") / 2 < problem.out_channels;
          },
          {"channels"}},
         {"parts of the reduction that have a unit of 64 input channels each",
          [](const Theta &theta, const Problem &problem) {
              const int units = (problem.in_channels + DISTILE_TWO_FOUR_COLUMNS - 1) / DISTILE_TWO_FOUR_COLUMNS;
              return theta.at("splits") <= problem.kernel_h * problem.kernel_w * units;
          },
          {"splits"}},
         tile_of_at_most_4096_pixels()},
        describe_cuda_two_four,
        {}};
}

}  // namespace

const Space &cuda_two_four_space(TensorCores cores) {
    static const Space sm80 = two_four_space_of(cuda_two_four::Cores::Sm80),
                       sm90 = two_four_space_of(cuda_two_four::Cores::Sm90);
    return cores == TensorCores::Sm90 ? sm90 : sm80;
}

}  // namespace distile
