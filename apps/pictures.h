/** \file
 * Pictures of masks and tiles, for the demonstration.
 */
#ifndef DISTILE_PICTURES_H
#define DISTILE_PICTURES_H

#include "masks/mask_families.h"
#include <cstdint>
#include <string>
#include <vector>

namespace distile {

/** The tiles of one granularity over a mask. */
struct TilePanel {
    std::string caption; /**< The lines above it. */
    int32_t tile_h = 1, tile_w = 1;
    std::vector<uint32_t> tiles; /**< Origins as in distile_tile_list. */
};

/** Draws a title, a photo (a PNG file, or "" for none), the panels side by side, and a legend. Throws a
 * std::runtime_error that names the file. */
void write_sheet(const std::string &path, const std::string &title, const ByteMask &mask,
                 const std::vector<TilePanel> &panels, const std::string &photo, const std::string &photo_caption);

}  // namespace distile

#endif
