/** \file
 * The variants that a time table can choose for masks of one shape.
 */
#ifndef DISTILE_POSSIBLE_VARIANTS_H
#define DISTILE_POSSIBLE_VARIANTS_H

#include "choose_variant.h"
#include "tiles.h"
#include <vector>

namespace distile {

/** The indices of the variants that is_better() can choose for some mask of this shape, in order. With one granularity
 * beside dense variants these are the lower envelope of the costs. Counts at several granularities are only bounded by
 * each other, so others may remain, but none is missing. */
std::vector<int32_t> possible_variants(const std::vector<TimedVariant> &variants, const MaskShape &shape);

}  // namespace distile

#endif
