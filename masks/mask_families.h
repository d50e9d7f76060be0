/** \file
 * The masks of the benchmarks, the demonstration and the tests: drawn families, and the real masks that the
 * project ships. Every mask is drawn per pixel, never per tile, and from a seed.
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
    /** Active pixels by all pixels, from 0 to 1. */
    double density() const;
};

/** A smooth Gaussian random field with a correlation length of 1/8 of the image, cut at the quantile that
 * makes exactly round(density * height * width) pixels of every image active. */
ByteMask blob_mask(int32_t batch, int32_t height, int32_t width, double density, uint64_t seed);

/** Independent pixels, active with the given probability. */
ByteMask random_mask(int32_t batch, int32_t height, int32_t width, double density, uint64_t seed);

/** Active where x + y is even. */
ByteMask checkerboard_mask(int32_t batch, int32_t height, int32_t width);

/** The mask of a family by name ("blob", "random" or "checkerboard"). Throws std::invalid_argument. */
ByteMask draw_mask(const std::string &family, int32_t batch, int32_t height, int32_t width, double density,
                   uint64_t seed);

/** Names of the real masks in data/masks that read_real_mask() knows. */
std::vector<std::string> real_masks();

/** A real mask at its own size, for instance "sige_church". Throws std::runtime_error that names the file. */
ByteMask read_real_mask(const std::string &name, const std::string &folder = DISTILE_MASKS_FOLDER);

/** Nearest-neighbour scaling of a mask to another size. */
ByteMask scale_mask(const ByteMask &mask, int32_t height, int32_t width);

/** Active wherever an active pixel lies within `radius` pixels in both directions. */
ByteMask dilate_mask(const ByteMask &mask, int32_t radius);

}  // namespace distile

#endif
