/** \file
 * What zeros in weights are good for, before a PolyKernel is chosen and packs them.
 */
#ifndef DISTILE_PRUNED_H
#define DISTILE_PRUNED_H

#include "quantize.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Sets `keep` to 1 if weights have the pattern 2:4, with which PolyKernels for sparse tensor cores pack them, else to
 * 0: of four consecutive input channels, the first of which is a multiple of four, at most two have weights that are
 * not 0 in `dtype`, DISTILE_FLOAT16 or DISTILE_BFLOAT16, for each output channel and kernel position. Batch
 * normalisation is folded in first. Ends at the first four without the pattern. Errors: NULL_POINTER, BAD_VALUE,
 * BAD_SHAPE (an extent below 1, or more than 2^31 weights), BAD_ALIGNMENT, BAD_TYPE (the source is not of a
 * floating-point type, or `dtype` is neither of these two), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_weights_keep_two_of_four(distile_context *context,
                                                            const distile_weights_source *source,
                                                            const distile_filter_extents *extents, distile_dtype dtype,
                                                            int32_t *keep);

#ifdef __cplusplus
}
#endif

#endif
