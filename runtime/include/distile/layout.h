/** \file
 * Conversions from and to the NCHW tensors of other frameworks. See distile.h for further errors on a GPU.
 */
#ifndef DISTILE_LAYOUT_H
#define DISTILE_LAYOUT_H

#include "distile.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A tensor [batch, channels, height, width] whose rows are contiguous; strides in elements. */
typedef struct distile_nchw {
    void *data;
    distile_dtype dtype;
    int64_t stride_n, stride_c, stride_h;
} distile_nchw;

/** A contiguous float32 tensor. */
DISTILE_API distile_nchw distile_nchw_make(void *data, int32_t channels, int32_t height, int32_t width);

/** Copies every pixel of `from`, which has the extents and the type of `to`, into `to`. Leaves the border unchanged.
 * Their address ranges must not overlap. Errors: NULL_POINTER, BAD_SHAPE, BAD_STRIDE, BAD_TYPE, BAD_CHANNELS,
 * BAD_ALIGNMENT, ALIASING. */
DISTILE_API distile_status distile_from_nchw(distile_context *context, const distile_nchw *from,
                                             const distile_tensor *to);
/** The reverse. Errors: NULL_POINTER, BAD_SHAPE, BAD_STRIDE, BAD_TYPE, BAD_CHANNELS, BAD_ALIGNMENT, ALIASING. */
DISTILE_API distile_status distile_to_nchw(distile_context *context, const distile_tensor *from,
                                           const distile_nchw *to);

#ifdef __cplusplus
}
#endif

#endif
