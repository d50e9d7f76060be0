/** \file
 * The shapes of masks and tiles.
 */
#ifndef DISTILE_TILES_H
#define DISTILE_TILES_H

#include <cstdint>

namespace distile {

struct MaskShape {
    int32_t batch, height, width;

    bool operator==(const MaskShape &other) const {
        return batch == other.batch && height == other.height && width == other.width;
    }
    int64_t num_pixels() const {
        return int64_t{batch} * height * width;
    }
};

/** A tile's extent in output pixels. */
struct Granularity {
    int32_t h, w;

    bool operator==(const Granularity &other) const {
        return h == other.h && w == other.w;
    }
};

/** A half-open rectangle of an image's tile grid: rows [y0, y1), columns [x0, x1), in tiles. */
struct TileRect {
    int32_t x0, x1, y0, y1;

    bool operator==(const TileRect &other) const {
        return x0 == other.x0 && x1 == other.x1 && y0 == other.y0 && y1 == other.y1;
    }
};

/** The number of tiles in the whole grid, active or not. */
inline int64_t num_tiles(const MaskShape &shape, const Granularity &granularity) {
    const int64_t rows = (int64_t{shape.height} + granularity.h - 1) / granularity.h;
    return shape.batch * rows * ((int64_t{shape.width} + granularity.w - 1) / granularity.w);
}

}  // namespace distile

#endif
