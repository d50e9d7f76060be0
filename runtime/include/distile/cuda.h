/** \file
 * Contexts of an NVIDIA GPU, and what no other device has: streams, green contexts and a cache of compiled code.
 *
 * The driver is loaded when the first context is made: a program that uses this header needs no CUDA library to start.
 * All work of a context is put on its stream in the order of the calls, and scratch memory is reused in that order: a
 * caller that changes the stream, or replays graphs on another, orders the two.
 *
 * While a graph is being captured, DISTILE_ERROR_CAPTURING is returned for what would take memory or wait: the same
 * calls with the same shapes must have been made before. What is known of a mask is what the last call that set it
 * left, be that in a capture or not: where several set it, in graphs or outside, and another than the last one ran, set
 * it again before other calls take it.
 */
#ifndef DISTILE_CUDA_H
#define DISTILE_CUDA_H

#include <distile/planner.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Zero-initialise, then set what should differ from the default. */
typedef struct distile_cuda_options {
    int32_t device; /**< Its number. Ignored where `context` is given. */
    /** A CUcontext of the caller's, a green one for instance, which must outlive the context and its weights; null: the
     * primary context. */
    void *context;
    /** A CUstream of that context, which must live until distile_cuda_set_stream replaces it or no call follows; null:
     * its default stream. */
    void *stream;
    /** A folder of the caller's own for code that was compiled for this GPU, made where it is missing: what is found
     * there is run. What cannot be read is compiled again, and what cannot be written is no error. Null: none of ours,
     * but the driver keeps a cache of its own. */
    const char *cache_folder;
    int64_t reserved[4]; /**< 0 */
} distile_cuda_options;

/** Makes a context of a GPU. Both options may be null. After an error distile_context_message(NULL) has the cause.
 * Errors: NULL_POINTER, BAD_VALUE, NO_DRIVER, OLD_DRIVER, NO_GPU (also none of that number), UNSUPPORTED_DEVICE,
 * OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY. */
DISTILE_API distile_status distile_cuda_context_create(const distile_context_options *options,
                                                       const distile_cuda_options *cuda, distile_context **context);

/** Puts all later work on another CUstream, which must live as the one in the options; null: the default stream.
 * Errors: NULL_POINTER, OTHER_DEVICE (the context is of no NVIDIA GPU). */
DISTILE_API distile_status distile_cuda_set_stream(distile_context *context, void *stream);

/** Lets the stream wait for what a planner clears in the background, if it clears anything. To be called before a
 * capture with the planner begins, before it ends, and before its graph is replayed. Errors: NULL_POINTER,
 * OTHER_DEVICE. */
DISTILE_API distile_status distile_cuda_planner_join(distile_planner *planner);

#ifdef __cplusplus
}
#endif

#endif
