/** \file
 * Tokens between the layers of a transformer: normalization, packing, and cumulative lengths. Tokens are the pixels of
 * a tensor [batch, 1, tokens, channels] (distile_tokens_make); every function takes images, too.
 *
 * On a GPU nothing waits, and a graph can capture a call together with the call that sets its mask, once both have run
 * outside a capture with the same shapes. See distile.h for further errors on a GPU.
 */
#ifndef DISTILE_TOKENS_H
#define DISTILE_TOKENS_H

#include "distile.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What a pixel's channels are normalized by. */
typedef enum distile_norm {
    /** Layer norm: (x - mean) / sqrt(variance + epsilon), with the mean of squared deviations as the variance. */
    DISTILE_LAYER_NORM = 0,
    DISTILE_RMS_NORM = 1 /**< RMS norm: x / sqrt(mean of x^2 + epsilon). */
} distile_norm;

/** Zero-initialise, then set. */
typedef struct distile_normalize_args {
    const distile_tensor *input;  /**< At most 65535 channels. */
    const distile_tensor *output; /**< Has the input's extents and type; may be the same view. */
    distile_mask *mask;           /**< Has the output's batch, height and width. */
    const float *gamma, *beta;    /**< One factor and one summand per channel, on the device; null: 1 and 0. */
    distile_norm norm;
    float epsilon; /**< At least 0. */
    distile_inactive inactive;
    int64_t reserved[4]; /**< 0 */
} distile_normalize_args;

/** Computes output = norm(input) * gamma + beta at every active pixel, over its channels, for any floating-point type.
 * It computes in float32 and rounds the result once. The sums of a layer norm are of differences from the pixel's first
 * channel, so a large mean cancels nothing. The output may be the same view as the input; otherwise it must not overlap
 * it, and it must not overlap gamma and beta. All arguments are checked before anything is written. Errors:
 * NULL_POINTER, BAD_VALUE, BAD_SHAPE, BAD_STRIDE, BAD_ALIGNMENT, BAD_TYPE, BAD_CHANNELS, BAD_MASK (also a mask of
 * another context), ALIASING, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_normalize(distile_context *context, const distile_normalize_args *args);

/** Copies the active pixels of `tensor`, in the order of images, rows and columns, to the first pixels of `packed`, in
 * the same order, and leaves its other pixels unchanged. `packed` is usually [1, 1, capacity, channels]
 * (distile_tokens_make), but may have any extents; their product is the capacity. It has the tensor's type and
 * channels, and must not overlap it. More active pixels than the capacity are BAD_SHAPE on a CPU; a GPU, where only the
 * device knows their number, drops the last ones. All arguments are checked before anything is written. Errors:
 * NULL_POINTER, BAD_SHAPE, BAD_STRIDE, BAD_ALIGNMENT, BAD_TYPE, BAD_CHANNELS, BAD_MASK (also a mask of another context
 * or shape than the tensor), ALIASING, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_pack(distile_context *context, const distile_tensor *tensor, distile_mask *mask,
                                        const distile_tensor *packed);
/** The reverse: copies the first pixels of `packed` to the active pixels of `tensor`. The inactive pixels keep their
 * values or become 0. So do, on a GPU, the active pixels beyond the capacity. Errors: as distile_pack, and BAD_VALUE.
 */
DISTILE_API distile_status distile_unpack(distile_context *context, const distile_tensor *packed, distile_mask *mask,
                                          const distile_tensor *tensor, distile_inactive inactive);

/** Sets `lengths` to batch + 1 numbers: lengths[n] active pixels precede image n, and lengths[batch] are all. The
 * active pixels of image n are thus the pixels lengths[n] to lengths[n + 1] - 1 of a packed tensor, as attention over
 * packed sequences expects them. Valid until the mask is set again. On a GPU it is a device address, which stays the
 * same as long as the shape does, so a graph that captures setting the mask and this call rebuilds the numbers at every
 * launch. Errors: NULL_POINTER, BAD_MASK (it was never set), BAD_SHAPE (2^31 active pixels or more), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_cumulative_lengths(distile_mask *mask, const int32_t **lengths);

#ifdef __cplusplus
}
#endif

#endif
