#include "schedules/tile_knobs.h"
#include <cstdint>

namespace distile {

Knob tile_height() {
    return {"tile_h", "height of a tile in output pixels", {1, 2, 3, 4, 5, 6, 8, 10, 16}};
}

Knob tile_width() {
    return {"tile_w", "width of a tile in output pixels", {1, 2, 3, 4, 5, 6, 8, 10, 16}};
}

Constraint tile_of_whole_phases() {
    return {"a tile_h and a tile_w that are multiples of a transposed convolution's stride, or of an upsampling's "
            "scale",
            [](const Theta &theta, const Problem &problem) {
                return theta.at("tile_h") % problem.scale_h == 0 && theta.at("tile_w") % problem.scale_w == 0;
            },
            {"tile_h", "tile_w"}};
}

Constraint tile_of_at_most_4096_pixels() {
    return {
        "tiles of at most 4096 pixels",
        [](const Theta &theta, const Problem &) { return int64_t{theta.at("tile_h")} * theta.at("tile_w") <= 4096; },
        {"tile_h", "tile_w"}};
}

Constraint tile_of_one_token() {
    return {"tiles of one token",
            [](const Theta &theta, const Problem &) { return theta.at("tile_h") * theta.at("tile_w") == 1; },
            {"tile_h", "tile_w"}};
}

}  // namespace distile
