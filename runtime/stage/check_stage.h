/** \file
 * The checks of a stage's arguments.
 */
#ifndef DISTILE_STAGE_CHECK_STAGE_H
#define DISTILE_STAGE_CHECK_STAGE_H

#include "runtime/stage/stage.h"
#include "runtime/stage/stage_target.h"

namespace distile {

/** A stage whose arguments are right for this kind of device. Throws Failure. */
Stage checked_stage(distile_context *context, const distile_stage_args &args, const StageTarget &target);

/** Puts each step as early as what it reads and overwrites lets it, so that as few levels as possible wait for each
 * other. In a level, scores come last: a mask waits for all scores before it. Returns the numbers that the steps had.
 */
std::vector<int32_t> order_by_levels(Stage &stage);

}  // namespace distile

#endif
