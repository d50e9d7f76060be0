/** \file
 * Masks from files of anybody's.
 */
#ifndef DISTILE_MASK_FILES_H
#define DISTILE_MASK_FILES_H

#include <cstdint>
#include <string>
#include <vector>

namespace distile {

/** The mask of one image: not 0 for active pixels. */
struct MaskImage {
    std::string name; /**< The file, and the index in it where it holds several. */
    int height = 0, width = 0;
    std::vector<uint8_t> bytes;
};

/** The masks of a NumPy file, at least one: an array of type bool or uint8, [height, width] or [masks, height, width].
 * Throws std::runtime_error that names the file. */
std::vector<MaskImage> read_npy_masks(const std::string &path);

/** A PNG file: active where it is not black. Throws std::runtime_error that names the file. */
MaskImage read_png_mask(const std::string &path);

}  // namespace distile

#endif
