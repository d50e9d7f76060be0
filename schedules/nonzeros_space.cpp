#include "schedules/nonzeros_space.h"

namespace distile {

namespace {

/** The most vectors of a block whose sums fit the registers, for vectors of 16 pixels and for others. */
constexpr int most_wide = 16, most_vectors = 12;

std::string describe_nonzeros(const Theta &theta) {
    const std::string block = count_of(theta, "vectors", "vector");
    return (is_window(theta) ? "tiles of " + extents_of(theta, "tile_h", "tile_w") + " that share what they read; "
                             : std::string("pixels that lie anywhere; ")) +
           "nonzero weights, blocks of " + block + " of pixels; output channels in " +
           count_of(theta, "channel_splits", "part");
}

}  // namespace

const Space &nonzeros_space() {
    static const Space space = {
        {
            {"tile_h", "height of a tile in output pixels", {1, 4, 6, 7, 8, 10, 12, 16}},
            {"tile_w", "width of a tile in output pixels", {1, 4, 8, 16}},
            {"vectors", "vectors of pixels in a block", {4, 6, 7, 8, 10, 12, 16}},
            {"channel_splits", "least parts into which the output channels are split for the threads", {1, 2, 4}},
        },
        {
            {"sums of a block that fit the vector registers",
             [](const Theta &theta, const Problem &problem) {
                 return theta.at("vectors") <= (problem.vector_lanes == 16 ? most_wide : most_vectors);
             },
             {"vectors"}},
            {"tiles of one pixel, or of `vectors` rows that are one vector wide",
             [](const Theta &theta, const Problem &problem) {
                 return !is_window(theta) ||
                        (theta.at("tile_h") == theta.at("vectors") && theta.at("tile_w") == problem.vector_lanes);
             },
             {"tile_h", "tile_w", "vectors"}},
            {"tiles of one pixel, or a filter with rows that are neighbours",
             [](const Theta &theta, const Problem &problem) {
                 return !is_window(theta) || (problem.kernel_h > 1 && problem.dilation_h == 1);
             },
             {"tile_h", "tile_w"}},
        },
        describe_nonzeros,
        {}};
    return space;
}

}  // namespace distile
