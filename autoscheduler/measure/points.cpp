#include "autoscheduler/measure/points.h"
#include <algorithm>
#include <cmath>

namespace distile {

TileDisc::TileDisc(int height, int width, int tile_h, int tile_w)
    : height_(height), width_(width), tile_h_(tile_h), tile_w_(tile_w) {
    for (int y = 0; y < height; y += tile_h) {
        for (int x = 0; x < width; x += tile_w) {
            const double dy = y + 0.5 * tile_h - 0.5 * height, dx = x + 0.5 * tile_w - 0.5 * width;
            tiles_.push_back({std::hypot(dy, dx), y, x});
        }
    }
    std::stable_sort(tiles_.begin(), tiles_.end(),
                     [](const Tile &a, const Tile &b) { return a.distance < b.distance; });
}

std::vector<uint8_t> TileDisc::mask(int64_t num_tiles) const {
    std::vector<uint8_t> bytes(static_cast<size_t>(height_) * width_, 0);
    for (int64_t i = 0; i < num_tiles; i++) {
        const Tile &tile = tiles_[i];
        for (int y = tile.y; y < std::min(tile.y + tile_h_, height_); y++) {
            for (int x = tile.x; x < std::min(tile.x + tile_w_, width_); x++) {
                bytes[static_cast<size_t>(y) * width_ + x] = 1;
            }
        }
    }
    return bytes;
}

std::vector<Extents> parts_of_input(const Operator &op) {
    const Extents whole = {op.typical_height, op.typical_width};
    std::vector<Extents> inputs;
    for (int part : {8, 4, 2, 1}) {
        Extents input = whole;
        int &cut = whole.height == 1 || op.reads_keys() ? input.width : input.height;
        cut = std::max(cut / part, 1);
        const Extents output = op.output_of(input);
        if (output.height >= 1 && output.width >= 1 && (part == 1 || cut > 1 || inputs.empty())) {
            inputs.push_back(input);
        }
    }
    return inputs;
}

int64_t tiles_of_image(const Extents &image, int tile_h, int tile_w) {
    return int64_t{(image.height + tile_h - 1) / tile_h} * ((image.width + tile_w - 1) / tile_w);
}

}  // namespace distile
