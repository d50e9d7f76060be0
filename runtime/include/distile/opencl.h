/** \file
 * Contexts for OpenCL devices, and what only they have: queues, events, and addresses of buffers.
 *
 * Making the first context loads the OpenCL loader (libOpenCL.so.1), so a program that uses this header needs no OpenCL
 * library to start. Handles of OpenCL are passed as void *.
 *
 * The C API names memory by pointers, and OpenCL by cl_mem. distile_opencl_map joins them: it gives a buffer addresses
 * in this process, one for each of its bytes, at which nothing can be read or written. So views, crops and slices are
 * pointer arithmetic as on other devices. Sub-buffers are buffers. SVM becomes one by clCreateBuffer with
 * CL_MEM_USE_HOST_PTR.
 *
 * A context enqueues all work on its queue in the order of the calls. On an out-of-order queue it puts barriers around
 * it, so the work of the caller before a call is done before it starts, and work after the call starts when it is done.
 */
#ifndef DISTILE_OPENCL_H
#define DISTILE_OPENCL_H

#include <distile/planner.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Zero-initialise, then set only what differs from the default. */
typedef struct distile_opencl_options {
    /** The caller's cl_command_queue, in order or out of order. Retained until the context is destroyed. Null: a queue
     * of distile's own. */
    void *queue;
    int32_t device; /**< Without a queue: the number of the device, over all platforms, GPUs first. */
    /** The caller's folder for programs compiled for this device, created if missing. Code found there is run, so keep
     * the folder private. Unreadable files are compiled again; failure to write is no error. Null: distile keeps no
     * cache, but the driver may keep its own. */
    const char *cache_folder;
    /** A context whose addresses and weights this one shall share: of the same cl_context and device. Null: none. */
    distile_context *shared;
    int64_t reserved[4]; /**< 0 */
} distile_opencl_options;

/** Makes a context for an OpenCL device. Both options may be null. After an error, distile_context_message(NULL) gives
 * the cause. Errors: NULL_POINTER, BAD_VALUE, OTHER_DEVICE (`shared` is for another device), NO_DRIVER (no loader, or
 * none that finds a driver), OLD_DRIVER (below OpenCL 1.2), NO_GPU (no device, or none with that number),
 * UNSUPPORTED_DEVICE, OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY. */
DISTILE_API distile_status distile_opencl_context_create(const distile_context_options *options,
                                                         const distile_opencl_options *opencl,
                                                         distile_context **context);

/** The context's cl_command_queue, which it keeps; null unless the context is for an OpenCL device. */
DISTILE_API void *distile_opencl_queue(const distile_context *context);

/** Gives a cl_mem addresses, for tensors, masks and lists of this context and of those that share with it. `address`
 * names its first byte. Retains the buffer until distile_opencl_unmap or, at the latest, until the contexts and their
 * weights are destroyed. Kernels use 32-bit indices: a tensor must end within the first 2^31 elements of its buffer.
 * Errors: NULL_POINTER, OTHER_DEVICE, BAD_VALUE (not a buffer of the context's cl_context), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_opencl_map(distile_context *context, void *buffer, void **address);
/** Takes the addresses back; work that was enqueued still runs. Null is allowed. Errors: NULL_POINTER, OTHER_DEVICE,
 * BAD_VALUE (distile_opencl_map did not return the address). */
DISTILE_API distile_status distile_opencl_unmap(distile_context *context, void *address);
/** The cl_mem behind an address and the byte that it names, for instance of a planner's tensor or a list of tiles.
 * Errors: NULL_POINTER, OTHER_DEVICE, NOT_DEVICE_MEMORY. */
DISTILE_API distile_status distile_opencl_buffer(distile_context *context, const void *address, void **buffer,
                                                 size_t *offset);

/** Later work waits for an array of the caller's cl_event, which may belong to other queues of the cl_context. Errors:
 * NULL_POINTER, OTHER_DEVICE, BAD_VALUE. */
DISTILE_API distile_status distile_opencl_wait(distile_context *context, void *const *events, int32_t num_events);
/** Makes a cl_event that completes with all work so far. The caller releases it. Errors: NULL_POINTER, OTHER_DEVICE. */
DISTILE_API distile_status distile_opencl_signal(distile_context *context, void **event);

#ifdef __cplusplus
}
#endif

#endif
