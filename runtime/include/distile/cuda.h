/** \file
 * Contexts for NVIDIA GPUs, and what only they have: streams, green contexts and a cache of compiled code.
 *
 * Making the first context loads the driver, so a program that uses this header needs no CUDA library to start. A
 * context enqueues all work on its stream in the order of the calls and reuses scratch memory in that order. A caller
 * that changes the stream, or replays graphs on another, must order the two streams.
 *
 * During graph capture, calls that would allocate or wait return DISTILE_ERROR_CAPTURING: make the same calls with the
 * same shapes once before the capture. On the host, a mask reflects the last call that set it, captured or not. If the
 * GPU ran another of these calls last, as in a graph replay, set the mask again before other calls use it. A graph may
 * capture a call without the one that set its mask; then capture it anew whenever the mask is set again.
 */
#ifndef DISTILE_CUDA_H
#define DISTILE_CUDA_H

#include <distile/planner.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Zero-initialise, then set only what differs from the default. */
typedef struct distile_cuda_options {
    int32_t device; /**< The GPU's number. Ignored if `context` is set. */
    /** The caller's CUcontext, for instance a green one. It must outlive the context and its weights. Null: the primary
     * context. */
    void *context;
    /** A CUstream of that context. It must live until the last call that uses it, or until distile_cuda_set_stream
     * replaces it. Null: the default stream. */
    void *stream;
    /** The caller's folder for code compiled for this GPU, created if missing. Code found there is run, so keep the
     * folder private. Unreadable files are compiled again; failure to write is no error. Null: distile keeps no cache,
     * but the driver keeps its own. */
    const char *cache_folder;
    /** 1: where a call names no variant, the GPU chooses, so no distile_run waits. It chooses what
     * distile_kernel_choose would, but from the PolyKernel's own variants only, without those of
     * distile_kernel_add_dense, and without those that are not worth a launch (launch_us). 0: the host chooses where it
     * can, and the GPU only for masks that a graph sets. Set it to capture calls that name no variant: then the call
     * before the capture makes what the graph needs. */
    int32_t choose_on_device;
    /** What a launch costs in a choice on the GPU, in microseconds. The GPU launches all variants that it may choose,
     * so those that save less than that, on average over all densities, take no part. 0: 2 us. Below 0: nothing, so
     * that the GPU chooses exactly as the host. */
    double launch_us;
    int64_t reserved[3]; /**< 0 */
} distile_cuda_options;

/** Makes a context for a GPU. Both options may be null. After an error, distile_context_message(NULL) gives the cause.
 * Errors: NULL_POINTER, BAD_VALUE, NO_DRIVER, OLD_DRIVER, NO_GPU (also for a wrong number), UNSUPPORTED_DEVICE,
 * OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY. */
DISTILE_API distile_status distile_cuda_context_create(const distile_context_options *options,
                                                       const distile_cuda_options *cuda, distile_context **context);

/** Enqueues all later work on another CUstream, with the lifetime described in the options; null: the default stream.
 * Errors: NULL_POINTER, OTHER_DEVICE (not a context of an NVIDIA GPU). */
DISTILE_API distile_status distile_cuda_set_stream(distile_context *context, void *stream);

/** What the GPU chose the last time that it chose for this kernel, graphs included: the variant, its tiles, and the
 * table's time for them. The active pixels are -1. Waits for the stream. It does not choose where only one variant is
 * possible for the mask's shape: then traces name the variant. Errors: NULL_POINTER, OTHER_DEVICE, BAD_VALUE (it never
 * chose), CAPTURING. */
DISTILE_API distile_status distile_cuda_last_choice(distile_kernel *kernel, distile_choice *choice);

/** Makes the stream wait for the planner's background clearing, if any. Call it before a capture that uses the planner
 * begins, before it ends, and before its graph is replayed. Errors: NULL_POINTER, OTHER_DEVICE. */
DISTILE_API distile_status distile_cuda_planner_join(distile_planner *planner);

/** Several captured graphs that compute the same in other ways, as a network masked and dense, in one graph. At each
 * launch the GPU runs one of them: that which took the least time in earlier launches. Nothing waits for a mask. Now
 * and then it tries the others, because times change with the masks. */
typedef struct distile_cuda_switch distile_cuda_switch;

enum { DISTILE_MOST_WAYS = 8, DISTILE_MOST_SWITCH_MASKS = 32 };

/** Which graph a switch runs, where it is not the number of one. */
typedef enum distile_cuda_way {
    DISTILE_WAY_LEARNED = -1, /**< The fastest; others are tried while that costs no more than the budget. */
    DISTILE_WAY_SETTLED = -2  /**< The fastest by the times that are known. Nothing is tried, so launches that know the
                               * same times run the same graph, and results repeat bit for bit. */
} distile_cuda_way;

/** Zero-initialise, then set what differs. */
typedef struct distile_cuda_switch_args {
    void *const *graphs; /**< CUgraphs of the context's GPU, of which it keeps copies. What they read and write must
                          * outlive the switch. */
    int32_t num_graphs;  /**< 2 to DISTILE_MOST_WAYS. */
    int32_t num_masks;   /**< 0 to DISTILE_MOST_SWITCH_MASKS. */
    /** Bytes on the GPU that each launch counts, those that are not 0 as active: it keeps times by their share, so that
     * the masks of a launch decide about it. Masks that the graphs make themselves are not known before: then times of
     * the last launches decide. */
    const void *const *masks;
    const int64_t *mask_bytes; /**< How many bytes each mask has, at least 1. */
    double budget;             /**< The share of the time that trying other graphs may add, up to 1. 0: .01. */
    int64_t reserved[3];       /**< 0 */
} distile_cuda_switch_args;

/** What a switch has done. */
typedef struct distile_cuda_switch_info {
    int32_t way;                     /**< The graph of the last launch, -1 before it. */
    int32_t num_graphs;              /**< How many it has. */
    double density;                  /**< The share of active pixels in the last launch, to a 16th. */
    int64_t runs[DISTILE_MOST_WAYS]; /**< How often each graph ran. */
    /** What each takes at this density, or the nearest at which it ran, in microseconds; below 0 if it never ran. */
    double us[DISTILE_MOST_WAYS];
} distile_cuda_switch_info;

/** Makes a switch. Its launches start on the context's stream. A graph may have neither allocations nor host functions.
 * Errors: NULL_POINTER, BAD_VALUE, NOT_DEVICE_MEMORY (masks), OTHER_DEVICE, OLD_DRIVER (below CUDA 12.8, or the library
 * was built without), UNSUPPORTED_DEVICE, KERNEL (a graph that the driver takes into no switch), CAPTURING,
 * OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY. */
DISTILE_API distile_status distile_cuda_switch_create(distile_context *context, const distile_cuda_switch_args *args,
                                                      distile_cuda_switch **result);

/** Enqueues one of the graphs on the context's stream. Errors: NULL_POINTER, CAPTURING, KERNEL, DEVICE_LOST. */
DISTILE_API distile_status distile_cuda_switch_launch(distile_cuda_switch *object);

/** From the next launch on, a way to choose (distile_cuda_way), or the number of the graph to run. Waits for the
 * stream. Errors: NULL_POINTER, BAD_VALUE, CAPTURING. */
DISTILE_API distile_status distile_cuda_switch_set(distile_cuda_switch *object, int32_t way);

/** Waits for the stream. Errors: NULL_POINTER, CAPTURING. */
DISTILE_API distile_status distile_cuda_switch_get_info(distile_cuda_switch *object, distile_cuda_switch_info *info);

/** Waits for the GPU. Null is allowed. */
DISTILE_API void distile_cuda_switch_destroy(distile_cuda_switch *object);

#ifdef __cplusplus
}
#endif

#endif
