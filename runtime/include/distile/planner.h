/** \file
 * Output buffers for a chain of masked operators: zero wherever nothing was computed, with the zero border that the
 * next operator reads, and without a fill in the way of any of them.
 *
 * A planner rotates a few buffers. Of a buffer only the pixels need clearing that its last use wrote and the next one
 * will not. So operators run in mode DISTILE_KEEP into tensors that are zero already where they write nothing:
 *
 *     distile_planner_next(planner, &spec, mask, DISTILE_STORE_EXACT, &output);
 *     distile_run(kernel, &(distile_run_args){.input = &input, .output = &output, .weights = weights, .mask = mask});
 *
 * Cached activations, whose inactive pixels are those of an earlier input, need no planner: keep the tensor and run
 * into it again in mode DISTILE_KEEP.
 */
#ifndef DISTILE_PLANNER_H
#define DISTILE_PLANNER_H

#include "distile.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct distile_planner distile_planner;

/** When and how a buffer is cleared. On a GPU the mode DISTILE_ZERO is mostly faster than any planner: docs/cuda.md has
 * figures. */
typedef enum distile_clearing {
    /** When the buffer is handed out, the pixels that were written and are not going to be; where they are so
     * scattered that it takes longer, whole rows. On CPUs the fastest unless cores are idle. */
    DISTILE_CLEAR_WRITTEN = 0,
    DISTILE_CLEAR_ALL = 1, /**< Every pixel, when the buffer is handed out. */
    /** The written pixels as soon as the buffer is free: on a thread of the planner's, for idle cores, or on a GPU on a
     * stream of the planner's. */
    DISTILE_CLEAR_BACKGROUND = 2,
} distile_clearing;

/** Zero-initialise, then set what should differ from the default. */
typedef struct distile_planner_options {
    int32_t buffers; /**< 2 to 64; 0: 3, for operators that read one tensor. One more for each that is read later. */
    distile_clearing clearing;
    int64_t reserved[4]; /**< 0 */
} distile_planner_options;

/** A tensor to write: its extents, and the border of zeros around every image that its readers need
 * (distile_kernel_border). */
typedef struct distile_output_spec {
    int32_t batch, height, width, channels;
    int32_t border_top, border_bottom, border_left, border_right;
    distile_dtype dtype; /**< 0: DISTILE_FLOAT32. */
} distile_output_spec;

/** Makes a planner; `options` may be null. Buffers come from the context's allocator, or the GPU, when they are first
 * needed. Errors: NULL_POINTER, BAD_VALUE, OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY. */
DISTILE_API distile_status distile_planner_create(distile_context *context, const distile_planner_options *options,
                                                  distile_planner **planner);
/** Frees the buffers too. Null is allowed. */
DISTILE_API void distile_planner_destroy(distile_planner *planner);

/** The next tensor. It stays the caller's until as many further tensors were asked for as there are buffers, less one;
 * from then on it must not be used. With DISTILE_STORE_EXACT the caller writes all pixels that are active in `mask` (of
 * the spec's batch, height and width; it may be set anew afterwards), which may hold anything before, and no others:
 * those are zero. With DISTILE_STORE_TILES the whole tensor is zero and the caller may write any pixel. The border is
 * zero and never written. Errors: NULL_POINTER, BAD_VALUE, BAD_TYPE, BAD_MASK (also a mask of another shape or
 * context), BAD_STRIDE (more elements than a tensor may have), OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY, CAPTURING; no
 * buffer was then taken.
 *
 * On a GPU nothing waits: the tensor is zero for what is put on the stream next, and what was put on it before may
 * still use the buffer that becomes free. What was written is recorded on the GPU, its mask too, so that calls can be
 * captured in a graph once every buffer met its largest tensor; each replay then clears what was written last, by
 * whatever wrote it. The tensors of a graph stay those of its capture. */
DISTILE_API distile_status distile_planner_next(distile_planner *planner, const distile_output_spec *spec,
                                                distile_mask *mask, distile_store store, distile_tensor *output);

/** Bytes that the planner's buffers hold at present; 0 if `planner` is null. On a GPU, buffers that were outgrown are
 * kept, because a graph may use them. */
DISTILE_API int64_t distile_planner_bytes(const distile_planner *planner);

#ifdef __cplusplus
}
#endif

#endif
