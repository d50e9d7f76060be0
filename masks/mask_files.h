/** \file
 * Masks from untrusted files, and files of masks.
 */
#ifndef DISTILE_MASK_FILES_H
#define DISTILE_MASK_FILES_H

#include "masks/mask_families.h"
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

/** Whether a file's name ends so. */
bool ends_with(const std::string &path, const std::string &extension);

/** The masks of a NumPy file, at least one: an array of type bool or uint8, [height, width] or [masks, height, width].
 * Throws a std::runtime_error that names the file. */
std::vector<MaskImage> read_npy_masks(const std::string &path);

/** The mask of a PNG file, active where the image is not black. Throws a std::runtime_error that names the file. */
MaskImage read_png_mask(const std::string &path);

/** A NumPy file of type bool that holds masks of one size: [height, width] if they are one image, otherwise [images,
 * height, width]. */
std::string npy_of_masks(const std::vector<ByteMask> &masks);

/** A picture, [height, width]: 0 is black, 255 white. */
struct GrayImage {
    int32_t height = 0, width = 0;
    std::vector<uint8_t> pixels;
};

/** A PNG file. Throws std::runtime_error. */
std::string png_of(const GrayImage &image);

/** A PNG file that holds a mask of one image, white where it is active. Throws std::runtime_error. */
std::string png_of_mask(const ByteMask &mask);

}  // namespace distile

#endif
