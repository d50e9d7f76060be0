/** \file
 * What CPUs ask of stages, and the weights that they read.
 */
#ifndef DISTILE_CPU_STAGE_CPU_TARGET_H
#define DISTILE_CPU_STAGE_CPU_TARGET_H

#include "runtime/stage/stage_target.h"

namespace distile {

extern const StageTarget cpu_stage_target;

/** The factors of output channels that packed weights end with; null for types that have none. */
const float *stage_factors(const StageFilter &filter, distile_dtype dtype, const void *packed);

}  // namespace distile

#endif
