/** \file
 * Masks from untrusted files.
 */
#ifndef DISTILE_MASK_FILES_H
#define DISTILE_MASK_FILES_H

#include <cstdint>
#include <string>
#include <vector>

namespace distile {

/** The mask of one image; nonzero pixels are active. */
struct MaskImage {
    std::string name; /**< The file, and the index if it holds several masks. */
    int height = 0, width = 0;
    std::vector<uint8_t> bytes;
};

/** The masks of a NumPy file, at least one: an array of type bool or uint8, [height, width] or [masks, height, width].
 * Throws a std::runtime_error that names the file. */
std::vector<MaskImage> read_npy_masks(const std::string &path);

/** The mask of a PNG file, active where the image is not black. Throws a std::runtime_error that names the file. */
MaskImage read_png_mask(const std::string &path);

}  // namespace distile

#endif
