/** \file
 * The checks of a stage's arguments.
 */
#ifndef DISTILE_STAGE_CHECK_STAGE_H
#define DISTILE_STAGE_CHECK_STAGE_H

#include "runtime/stage/stage.h"

namespace distile {

/** A stage whose arguments are right. Throws Failure. */
Stage checked_stage(distile_context *context, const distile_stage_args &args);

}  // namespace distile

#endif
