/** \file
 * Nearest upsampling with a mask over the output: a copy, without weights, for any number of channels. If a convolution
 * follows, a masked_upsample_conv2d does both at once, and faster. See distile.h for further errors on a GPU.
 */
#ifndef DISTILE_UPSAMPLE_H
#define DISTILE_UPSAMPLE_H

#include "distile.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Zero-initialise, then set. */
typedef struct distile_upsample_args {
    const distile_tensor *input;  /**< Its border is ignored. */
    const distile_tensor *output; /**< scale_h times as high and scale_w times as wide, with as many channels. */
    distile_mask *mask;           /**< Has the output's batch, height and width. */
    int32_t scale_h, scale_w;     /**< At least 1. */
    distile_inactive inactive;
    int64_t reserved[4]; /**< 0 */
} distile_upsample_args;

/** Copies input pixel (y / scale_h, x / scale_w) to every active output pixel (y, x), for any floating-point type. The
 * output must not overlap the input; disjoint channels of one tensor do not overlap. All arguments are checked before
 * anything is written. Errors: NULL_POINTER, BAD_VALUE, BAD_SHAPE, BAD_STRIDE, BAD_ALIGNMENT, BAD_TYPE, BAD_CHANNELS,
 * BAD_MASK (also a mask of another context), ALIASING. */
DISTILE_API distile_status distile_upsample_nearest(distile_context *context, const distile_upsample_args *args);

#ifdef __cplusplus
}
#endif

#endif
