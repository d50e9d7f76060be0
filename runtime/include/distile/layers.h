/** \file
 * What a network's block has beside its convolutions: pooling, squeeze-excite, addition, multiplication and copies of
 * active pixels, group norm and batch norm, and masks from scores, for any floating-point type. They need no
 * PolyKernel.
 *
 * Every function computes in float32 and rounds each result once. It reads the active pixels, or the windows of active
 * pixels, and nothing else. Inactive pixels of an output keep their values or become 0. All arguments are checked
 * before anything is written.
 *
 * On a GPU nothing waits, and a graph can capture a call together with the call that sets its mask, once both have run
 * outside a capture with the same shapes. See distile.h for further errors on a GPU.
 */
#ifndef DISTILE_LAYERS_H
#define DISTILE_LAYERS_H

#include "mask_algebra.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Pooling ------------------------------------------------------------------------------ */

typedef enum distile_pooling {
    DISTILE_MAX_POOLING = 0, /**< NaN if any value is NaN. */
    DISTILE_AVERAGE_POOLING = 1
} distile_pooling;

/** Zero-initialise, then set. */
typedef struct distile_pool_args {
    const distile_tensor *input;  /**< Its border is ignored. */
    const distile_tensor *output; /**< Has the input's batch, channels and type. */
    distile_mask *mask;           /**< Has the output's batch, height and width. */
    /** A window of kind DISTILE_WINDOW_CONV. Every output pixel's window must contain a pixel of the input. */
    distile_window window;
    distile_pooling pooling;
    int32_t count_padding; /**< 1: an average divides by kernel_h * kernel_w; 0: by the pixels in the image. */
    distile_inactive inactive;
    int64_t reserved[4]; /**< 0 */
} distile_pool_args;

/** Pools the window of every active output pixel. It reads all pixels in these windows: distile_mask_needed_input with
 * the same window gives the mask of those that must be computed, and distile_mask_affected_output goes the other way.
 * The output must not overlap the input. Errors: NULL_POINTER, BAD_VALUE, BAD_SHAPE, BAD_STRIDE, BAD_ALIGNMENT,
 * BAD_TYPE, BAD_CHANNELS, BAD_MASK (also a mask of another context), ALIASING, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_pool(distile_context *context, const distile_pool_args *args);

/** Zero-initialise, then set. */
typedef struct distile_global_pool_args {
    const distile_tensor *input;
    const distile_tensor *output; /**< [batch, 1, 1, channels], of the input's type. */
    distile_mask *mask;           /**< Has the input's batch, height and width; null: all pixels are active. */
    distile_pooling pooling;
    int64_t reserved[4]; /**< 0 */
} distile_global_pool_args;

/** Pools the active pixels of each image to one pixel, which is 0 for an image without any. The output must not overlap
 * the input. Errors: as distile_pool. */
DISTILE_API distile_status distile_global_pool(distile_context *context, const distile_global_pool_args *args);

/* ---- Pixel by pixel ----------------------------------------------------------------------- */

typedef enum distile_combination {
    DISTILE_COPY = 0,    /**< activation(input) */
    DISTILE_ADD = 1,     /**< activation(input + other) */
    DISTILE_MULTIPLY = 2 /**< activation(input * other) */
} distile_combination;

/** Zero-initialise, then set. */
typedef struct distile_combine_args {
    const distile_tensor *input;
    /** The second operand, of the input's type: of the input's shape, or [batch, 1, 1, channels], which serves all
     * pixels of an image. Null for DISTILE_COPY. */
    const distile_tensor *other;
    const distile_tensor *output; /**< Has the input's shape and type. */
    distile_mask *mask;           /**< Has the output's batch, height and width. */
    distile_combination combination;
    distile_activation other_activation; /**< Applied to the second operand first, as to the gate of squeeze-excite. */
    distile_activation activation;
    distile_inactive inactive;
    const float *other_slope, *slope; /**< The activations' numbers, one each, in host memory; null: 0.01. */
    int64_t reserved[2];              /**< 0 */
} distile_combine_args;

/** Combines two tensors at every active pixel, or copies one. Squeeze-excite multiplies by the sigmoid of a tensor
 * [batch, 1, 1, channels]. To concatenate by channels, copy into views of the wider tensor's channels; better, let the
 * operator before write there. The output may be the same view as an operand of its shape; otherwise it must not
 * overlap one. Errors: NULL_POINTER, BAD_VALUE, BAD_SHAPE, BAD_STRIDE, BAD_ALIGNMENT, BAD_TYPE, BAD_CHANNELS, BAD_MASK
 * (also a mask of another context), ALIASING, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_combine(distile_context *context, const distile_combine_args *args);

/* ---- Group norm and batch norm ------------------------------------------------------------ */

/** Zero-initialise, then set. */
typedef struct distile_group_statistics_args {
    const distile_tensor *input;
    distile_mask *mask;     /**< Has the input's batch, height and width; null: all pixels are active. */
    int32_t groups;         /**< Groups of neighbouring channels; divides the number of channels. */
    float *mean, *variance; /**< [batch][groups], on the device. */
    int64_t reserved[4];    /**< 0 */
} distile_group_statistics_args;

/** Computes the mean of the active pixels of each image and group of channels, and the mean of squared deviations from
 * it. Both are 0 for an image without an active pixel. Neither may overlap the other or the input. Errors:
 * NULL_POINTER, BAD_VALUE, BAD_SHAPE, BAD_STRIDE, BAD_ALIGNMENT, BAD_TYPE, BAD_CHANNELS, BAD_MASK (also a mask of
 * another context), ALIASING, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_group_statistics(distile_context *context,
                                                    const distile_group_statistics_args *args);

/** Zero-initialise, then set. */
typedef struct distile_group_norm_args {
    const distile_tensor *input;
    const distile_tensor *output; /**< Has the input's shape and type; may be the same view. */
    distile_mask *mask;           /**< Has the output's batch, height and width. */
    int32_t groups;               /**< Groups of neighbouring channels; divides the number of channels. */
    /** The statistics, [batch][groups] on the device, for instance those that distile_group_statistics found earlier in
     * all pixels. Both null: those of the active pixels. */
    const float *mean, *variance;
    /** 1: the statistics are [groups], the same for all images, as in batch norm, which has a group for each channel.
     */
    int32_t shared_statistics;
    const float *gamma, *beta; /**< One factor and one summand per channel, on the device; null: 1 and 0. */
    float epsilon;             /**< At least 0. */
    distile_activation activation;
    distile_inactive inactive;
    const float *slope;  /**< The activation's, if it has one: one number in host memory; null: 0.01. */
    int64_t reserved[3]; /**< 0 */
} distile_group_norm_args;

/** Computes output = activation((input - mean) / sqrt(variance + epsilon) * gamma + beta) at every active pixel, with
 * the mean and the variance of its image and channel's group. The output may be the same view as the input; otherwise
 * it must not overlap it, and it must not overlap the vectors. Errors: as distile_group_statistics. */
DISTILE_API distile_status distile_group_norm(distile_context *context, const distile_group_norm_args *args);

/* ---- Mask units --------------------------------------------------------------------------- */

/** A mask unit: sets the pixels at which the sum of the channels times `weights`, plus `bias`, is above `threshold`.
 * That is a 1x1 convolution to one channel and a threshold, with no wait on any device. The weights are one float32 per
 * channel, on the device; null: 1. NaN is not above. The mask gets the tensor's batch, height and width; mask_algebra.h
 * takes it to other resolutions. On a GPU, the tensor and the weights must stay unchanged until the stream has read
 * them. Errors: NULL_POINTER, BAD_VALUE (bias or threshold is NaN), BAD_SHAPE, BAD_STRIDE, BAD_ALIGNMENT, BAD_TYPE,
 * BAD_CHANNELS, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_set_scores(distile_mask *mask, const distile_tensor *tensor,
                                                   const float *weights, float bias, float threshold);

#ifdef __cplusplus
}
#endif

#endif
