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

}  // namespace distile

#endif
