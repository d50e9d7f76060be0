/** \file
 * Output buffers for a chain of masked operators: zero wherever nothing was computed, with the zero border that the
 * next operator reads, and without a full clear per operator.
 *
 * A planner rotates a few buffers. It clears only the pixels that a buffer's last use wrote and the next use will not
 * write. So operators run in mode DISTILE_KEEP into tensors that are already zero elsewhere:
 *
 *     distile_planner_next(planner, &spec, mask, DISTILE_STORE_EXACT, &output);
 *     distile_run(kernel, &(distile_run_args){.input = &input, .output = &output, .weights = weights, .mask = mask});
 *
 * Cached activations, which keep inactive pixels from an earlier input, need no planner: run into the same tensor again
 * in mode DISTILE_KEEP.
 */
#ifndef DISTILE_PLANNER_H
#define DISTILE_PLANNER_H

#include "distile.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct distile_planner distile_planner;

/** When and how a buffer is cleared. On a GPU, mode DISTILE_ZERO is usually faster than any planner; see
 * docs/cuda.md. */
typedef enum distile_clearing {
    /** When the buffer is handed out, clears the pixels that were written and will not be overwritten, or whole rows
     * where that is faster. The fastest on a CPU unless cores are idle. */
    DISTILE_CLEAR_WRITTEN = 0,
    DISTILE_CLEAR_ALL = 1, /**< When the buffer is handed out, clears every pixel. */
    /** Clears the written pixels as soon as the buffer is free, on the planner's own thread (for idle cores) or, on a
     * GPU, on its own stream. */
    DISTILE_CLEAR_BACKGROUND = 2,
} distile_clearing;

/** Zero-initialise, then set only what differs from the default. */
typedef struct distile_planner_options {
    int32_t buffers; /**< 2 to 64; 0: 3, enough if each operator reads the previous output only. */
    distile_clearing clearing;
    int64_t reserved[4]; /**< 0 */
} distile_planner_options;

/** A tensor to write: its extents, and the zero border around every image that its readers need
 * (distile_kernel_border). */
typedef struct distile_output_spec {
    int32_t batch, height, width, channels;
    int32_t border_top, border_bottom, border_left, border_right;
    distile_dtype dtype; /**< 0: DISTILE_FLOAT32. */
} distile_output_spec;

/** Makes a planner; `options` may be null. It allocates buffers on first use, from the context's allocator or on the
 * GPU. Errors: NULL_POINTER, BAD_VALUE, OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY. */
DISTILE_API distile_status distile_planner_create(distile_context *context, const distile_planner_options *options,
                                                  distile_planner **planner);
/** Frees the buffers too. Null is allowed. */
DISTILE_API void distile_planner_destroy(distile_planner *planner);

/** Returns the next tensor. With N buffers, the caller must stop using it after N - 1 further calls. With
 * DISTILE_STORE_EXACT the caller writes exactly the pixels that are active in `mask`, which has the spec's batch,
 * height and width and may be set again afterwards. These pixels start with any values; all others are zero. With
 * DISTILE_STORE_TILES the whole tensor is zero and the caller may write any pixel. The border is zero; never write it.
 * An error takes no buffer. Errors: NULL_POINTER, BAD_VALUE, BAD_TYPE, BAD_MASK (also a mask of another shape or
 * context), BAD_STRIDE (more elements than a tensor may have), OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY, CAPTURING.
 *
 * On a GPU nothing waits: the tensor is zero for later work on the stream, and earlier work may still use the buffer
 * that it replaces. The GPU records what was written, including the mask, so a graph can capture these calls once every
 * buffer has held its largest tensor. Each replay then clears whatever was written last. A graph keeps the tensors of
 * its capture. */
DISTILE_API distile_status distile_planner_next(distile_planner *planner, const distile_output_spec *spec,
                                                distile_mask *mask, distile_store store, distile_tensor *output);

/** Bytes that the planner's buffers occupy now; 0 if `planner` is null. On a GPU, outgrown buffers are kept because a
 * graph may use them. */
DISTILE_API int64_t distile_planner_bytes(const distile_planner *planner);

#ifdef __cplusplus
}
#endif

#endif
