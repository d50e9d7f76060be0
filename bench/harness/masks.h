/** \file
 * The masks of rows.
 */
#ifndef DISTILE_BENCH_MASKS_H
#define DISTILE_BENCH_MASKS_H

#include "bench/harness/rows.h"
#include "masks/mask_families.h"

namespace distile::bench {

/** The mask of a row at a size. Throws std::exception if its file in the folder of real masks cannot be read. */
ByteMask make_byte_mask(const MaskSpec &spec, int32_t batch, int32_t height, int32_t width,
                        const std::string &folder = DISTILE_MASKS_FOLDER);

/** Masks of several seeds to alternate: branch predictors would memorise a single mask. */
std::vector<ByteMask> make_byte_masks(const MaskSpec &spec, int32_t batch, int32_t height, int32_t width);

}  // namespace distile::bench

#endif
