/** \file
 * Stages that are run, and traced while somebody wants that.
 */
#ifndef DISTILE_PYTHON_STAGE_TRACE_H
#define DISTILE_PYTHON_STAGE_TRACE_H

#include <distile/stage.h>

namespace distile::python {

/** Runs a stage as distile_run_stage does. Between trace_stages(true) and trace_stages(false), also of other threads,
 * it waits for the stage and keeps its items. Throws Error. */
void run_steps(distile_context *context, const distile_stage_args &args);

}  // namespace distile::python

#endif
