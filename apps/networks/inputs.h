/** \file
 * The inputs of networks: photos, densities of blocks, and the thresholds that give them.
 */
#ifndef DISTILE_NETWORKS_INPUTS_H
#define DISTILE_NETWORKS_INPUTS_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace distile::networks {

/** A photo of data/masks scaled to this size, [batch][size][size][3] from -1 to 1. Later images are shifted. */
std::vector<float> photo(int32_t size, int32_t batch);

/** Densities of `blocks` blocks with this mean: DynConv's published ones, interpolated to the number of blocks and
 * bent. */
std::vector<double> block_densities(size_t blocks, double mean);

/** Sums of random waves, at most three over an image, the same at each resolution: where a mask unit is to compute.
 * [batch][height][width] */
std::vector<double> smooth_fields(int32_t batch, int32_t height, int32_t width);

/** A threshold that the fraction `density` of the scores exceeds. It lies between two scores, so that rounding does not
 * change the mask. */
float threshold_of(std::vector<float> scores, double density);

}  // namespace distile::networks

#endif
