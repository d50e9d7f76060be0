/** \file
 * The variants that a time table can choose for masks of one shape.
 */
#ifndef DISTILE_POSSIBLE_VARIANTS_H
#define DISTILE_POSSIBLE_VARIANTS_H

#include "runtime/choice/choice.h"
#include "runtime/mask/tiles.h"
#include <vector>

namespace distile {

/** The indices of the variants that is_better() can choose for some mask of this shape, in order. With one granularity
 * beside dense variants these are the lower envelope of the costs. Counts at several granularities are only bounded by
 * each other, so others may remain, but none is missing. */
std::vector<int32_t> possible_variants(const std::vector<TimedVariant> &variants, const MaskShape &shape);

/** What enqueues variants from which a device chooses. */
struct Launches {
    std::vector<int32_t> of_variants;  ///< The launch of each variant; those with the same number above 0 share one.
    double launch_us, choice_us;       ///< The costs of one more launch, and of choosing among several variants.
};

/** The variants in `possible` whose launches cost less than they save on average over all densities. Without the time
 * of a variant, all remain. */
std::vector<int32_t> worth_launching(const std::vector<TimedVariant> &variants, std::vector<int32_t> possible,
                                     const MaskShape &shape, const Launches &launches);

/** The choice among some of the variants, by ranges of the number of tiles. Requires that those that are not dense have
 * one granularity; else there are no ranges. */
std::vector<ChoiceRange> choice_by_count(const std::vector<TimedVariant> &variants,
                                         const std::vector<int32_t> &possible, const MaskShape &shape);

}  // namespace distile

#endif
