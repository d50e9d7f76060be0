/** \file
 * The variants that a time table can choose for masks of one shape.
 */
#ifndef DISTILE_POSSIBLE_VARIANTS_H
#define DISTILE_POSSIBLE_VARIANTS_H

#include "choice.h"
#include "tiles.h"
#include <vector>

namespace distile {

/** The indices of the variants that is_better() can choose for some mask of this shape, in order. With one granularity
 * beside dense variants these are the lower envelope of the costs. Counts at several granularities are only bounded by
 * each other, so others may remain, but none is missing. */
std::vector<int32_t> possible_variants(const std::vector<TimedVariant> &variants, const MaskShape &shape);

/** The choice among some of the variants, by ranges of the number of tiles. Requires that those that are not dense have
 * one granularity; else there are no ranges. */
std::vector<ChoiceRange> choice_by_count(const std::vector<TimedVariant> &variants,
                                         const std::vector<int32_t> &possible, const MaskShape &shape);

}  // namespace distile

#endif
