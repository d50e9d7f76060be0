/** \file
 * Files of masks: NumPy arrays of type bool or uint8, [height, width] or [masks, height, width].
 */
#ifndef DISTILE_MASK_FILE_H
#define DISTILE_MASK_FILE_H

#include <cstdint>
#include <string>
#include <vector>

namespace distile {

/** The mask of one image: not 0 for active pixels. */
struct MaskImage {
    std::string name; /**< The file, and the index in it where it holds several. */
    int height = 0, width = 0;
    std::vector<uint8_t> bytes;

    /** Active pixels by all pixels. */
    double density() const;
    /** Tiles of a granularity that have an active pixel. */
    int64_t tiles(int tile_h, int tile_w) const;
};

/** The masks of a file. Throws FileError. */
std::vector<MaskImage> read_masks(const std::string &path);

}  // namespace distile

#endif
