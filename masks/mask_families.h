/** \file
 * Masks for the benchmarks, the demonstration and the tests: drawn families, and the real masks that ship. Masks are
 * drawn per pixel, never per tile, from a seed.
 */
#ifndef DISTILE_MASK_FAMILIES_H
#define DISTILE_MASK_FAMILIES_H

#include <cstdint>
#include <string>
#include <vector>

namespace distile {

/** A byte mask [batch, height, width]: 1 for active pixels, 0 for the others. */
struct ByteMask {
    int32_t batch = 1, height = 0, width = 0;
    std::vector<uint8_t> bytes;

    int64_t active_pixels() const;
    /** The fraction of active pixels, from 0 to 1. */
    double density() const;
};

/** A Gaussian random field with a correlation length of 1/8 of the image, thresholded so that exactly round(density *
 * height * width) pixels of every image are active. */
ByteMask blob_mask(int32_t batch, int32_t height, int32_t width, double density, uint64_t seed);

/** Independent pixels, each active with the given probability. */
ByteMask random_mask(int32_t batch, int32_t height, int32_t width, double density, uint64_t seed);

/** Active where x + y is even. */
ByteMask checkerboard_mask(int32_t batch, int32_t height, int32_t width);

/** Draws a mask of the named family ("blob", "random" or "checkerboard"). Throws std::invalid_argument. */
ByteMask draw_mask(const std::string &family, int32_t batch, int32_t height, int32_t width, double density,
                   uint64_t seed);

/** Draws a mask by its name: "blob:DENSITY:SEED", "random:DENSITY:SEED" or "checkerboard". Throws a
 * std::invalid_argument that completes the sentence "it is ...". */
ByteMask draw_named_mask(const std::string &name, int32_t batch, int32_t height, int32_t width);

/** The names that read_real_mask() knows. */
std::vector<std::string> real_masks();

/** A real mask at its original size, for instance "sige_church". Throws a std::runtime_error that names the file. */
ByteMask read_real_mask(const std::string &name, const std::string &folder = DISTILE_MASKS_FOLDER);

/** A photo, [height, width, red green blue]. */
struct Photo {
    int height = 0, width = 0;
    std::vector<uint8_t> rgb;
};

/** Reads a PNG file. Throws a std::runtime_error that names it. */
Photo read_photo(const std::string &path);

/** Nearest-neighbour scaling of a mask to another size. */
ByteMask scale_mask(const ByteMask &mask, int32_t height, int32_t width);

/** Active wherever an active pixel lies within `radius` rows and columns. */
ByteMask dilate_mask(const ByteMask &mask, int32_t radius);

}  // namespace distile

#endif
