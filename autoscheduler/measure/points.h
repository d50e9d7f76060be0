/** \file
 * What schedules are measured with: masks of some number of tiles, and parts of the input for dense candidates.
 */
#ifndef DISTILE_POINTS_H
#define DISTILE_POINTS_H

#include "plans/operator.h"
#include <cstdint>
#include <vector>

namespace distile {

/** A table of a GPU must reach from a part of one image to as many images as anybody brings. Between, few are measured,
 * so that they are as densely filled as masks fill them. */
constexpr int few_images = 4, most_images = 32;

/** Byte masks with the tiles that lie nearest to the image's centre: one compact region, as masks of objects are. */
class TileDisc {
public:
    TileDisc(int height, int width, int tile_h, int tile_w);

    std::vector<uint8_t> mask(int64_t num_tiles) const;

private:
    struct Tile {
        double distance;
        int y, x;
    };

    int height_, width_, tile_h_, tile_w_;
    std::vector<Tile> tiles_;
};

/** Tiles of a granularity that an image has. */
int64_t tiles_of_image(const Extents &image, int tile_h, int tile_w);

/** Sizes of inputs for which to measure a dense candidate: about an eighth, a fourth and a half of the typical one,
 * and all of it. Images of one row are cut along it, others across their rows. */
std::vector<Extents> parts_of_input(const Operator &op);

}  // namespace distile

#endif
