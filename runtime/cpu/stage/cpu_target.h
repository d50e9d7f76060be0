/** \file
 * What CPUs ask of stages, and the weights that they read.
 */
#ifndef DISTILE_CPU_STAGE_CPU_TARGET_H
#define DISTILE_CPU_STAGE_CPU_TARGET_H

#include "runtime/stage/stage_target.h"

namespace distile {

extern const StageTarget cpu_stage_target;

/** Packed weights are parts one behind the other: a group each, or all of a depthwise convolution, which are packed as
 * from one input channel. */
struct StageParts {
    StageFilter filter;
    int32_t count;
    int64_t bytes;  ///< A part has them.
};
StageParts stage_parts(const StageFilter &filter, distile_dtype dtype);

/** The factors of output channels that a part of packed weights ends with; null for types that have none. */
const float *stage_factors(const StageFilter &filter, distile_dtype dtype, const void *packed);

}  // namespace distile

#endif
