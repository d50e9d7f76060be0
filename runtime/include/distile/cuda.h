/** \file
 * Masked operators on an NVIDIA GPU: convolutions with one group, with the plans, tensors and options of distile.h.
 * Data, data pointers and masks are the device's, and nothing is copied but what is said to be.
 *
 * The driver is loaded when the first GPU is opened: a program that uses this header needs no CUDA library to start.
 * A distile_cuda and what is made from it belongs to one thread at a time; so does its distile_context, which keeps
 * the messages of errors and gets the traces. What is made from a distile_cuda must be destroyed before it, and it
 * before its distile_context. All work is put on the stream in the order of the calls, and all scratch memory is
 * reused in that order: a caller that changes the stream, or replays graphs on another, orders the two.
 *
 * Errors beside those of distile.h: NO_DRIVER, OLD_DRIVER, NO_GPU, UNSUPPORTED_GPU, OUT_OF_DEVICE_MEMORY,
 * NOT_DEVICE_MEMORY and DEVICE_LOST, after which the CUDA context, and all that is in it, is lost for CUDA itself.
 * While a graph is being captured, BAD_VALUE for what would take memory or wait: the same calls with the same shapes
 * must have been made before.
 */
#ifndef DISTILE_CUDA_H
#define DISTILE_CUDA_H

#include <distile/distile.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A GPU and a stream. */
typedef struct distile_cuda distile_cuda;

/** Zero-initialise, then set what should differ from the default. */
typedef struct distile_cuda_options {
    int32_t device; /**< Its number. Ignored where `context` is given. */
    void *context;  /**< A CUcontext of the caller's, which must outlive the object; null: the primary context. */
    /** A CUstream of that context, which must live until distile_cuda_set_stream replaces it or no call follows; null:
     * its default stream. */
    void *stream;
    /** A folder of the caller's own for code that was compiled for this GPU, made where it is missing: what is found
     * there is run. What cannot be read is compiled again, and what cannot be written is no error. Null: none of ours,
     * but the driver keeps a cache of its own. */
    const char *cache_folder;
} distile_cuda_options;

/** Opens a GPU. `options` may be null. Errors: NULL_POINTER, NO_DRIVER, OLD_DRIVER, NO_GPU (also none of that number),
 * UNSUPPORTED_GPU, OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY. */
DISTILE_API distile_status distile_cuda_create(distile_context *context, const distile_cuda_options *options,
                                               distile_cuda **cuda);
/** Waits for all work in the GPU's context. Null is allowed, and so is a GPU whose context was lost. */
DISTILE_API void distile_cuda_destroy(distile_cuda *cuda);
/** The multiprocessors of the context, of which a green context has fewer than the GPU: what the `threads` of a time
 * table mean for a kernel on a GPU. 0 if `cuda` is null. */
DISTILE_API int32_t distile_cuda_multiprocessors(const distile_cuda *cuda);
/** Puts all later work on another CUstream, which must live as the one in the options; null: the default stream.
 * Errors: NULL_POINTER. */
DISTILE_API distile_status distile_cuda_set_stream(distile_cuda *cuda, void *stream);

/* ---- Masks -------------------------------------------------------------------------------- */

/** A mask on the device. What is known of it is what the last call that set it left, be that in a capture or not: where
 * several set it, in graphs or outside, and another than the last one ran, set it again before other calls take it. */
typedef struct distile_cuda_mask distile_cuda_mask;

/** As distile_mask_create. */
DISTILE_API distile_status distile_cuda_mask_create(distile_cuda *cuda, distile_cuda_mask **mask);
/** Null is allowed. */
DISTILE_API void distile_cuda_mask_destroy(distile_cuda_mask *mask);
/** Sets the mask from bytes on the device, as distile_mask_set_bytes does from bytes on the host. They must stay as
 * they are until the stream has come to what was put on it here. Fewer than 2^31 pixels. */
DISTILE_API distile_status distile_cuda_mask_set_bytes(distile_cuda_mask *mask, const uint8_t *bytes, int32_t batch,
                                                       int32_t height, int32_t width, int64_t stride_n,
                                                       int64_t stride_h);
/** The bits, on the device, in the order of distile_mask_bits but in words of 32. Valid until the mask is set with
 * another shape: with the same one, the new bits take the place of the old. Errors: NULL_POINTER, BAD_MASK (it was
 * never set). */
DISTILE_API distile_status distile_cuda_mask_bits(distile_cuda_mask *mask, const uint32_t **words,
                                                  int32_t *words_per_row);
/** The active tiles at a granularity, on the device: the arrays, with room for every tile of the grid, in the order
 * of distile_mask_tiles, and the address of their number. Valid until the mask is set again. They are in the same place
 * as long as the shape is the same: a graph in which the mask is set and this is called makes them with every launch.
 * A mask knows 65 granularities, those of kernels that chose by it included. Errors: NULL_POINTER, BAD_VALUE (also one
 * granularity more), BAD_MASK (it was never set), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_cuda_mask_tiles(distile_cuda_mask *mask, int32_t tile_h, int32_t tile_w,
                                                   const uint32_t **xy, const uint32_t **image, const uint32_t **count);

/* ---- Kernels and weights ------------------------------------------------------------------ */

typedef struct distile_cuda_kernel distile_cuda_kernel;

/** Compiles the PolyKernel's code for the GPU, unless a cache has it, and loads all of it. The PolyKernel must outlive
 * the kernel. Errors: NULL_POINTER, VERSION, BAD_VALUE (it is for CPUs, or no convolution with one group),
 * UNSUPPORTED_GPU, OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY. */
DISTILE_API distile_status distile_cuda_kernel_create(distile_cuda *cuda, const distile_polykernel *polykernel,
                                                      distile_cuda_kernel **kernel);
/** Waits for all work in the GPU's context, and unloads the code. Null is allowed. */
DISTILE_API void distile_cuda_kernel_destroy(distile_cuda_kernel *kernel);
/** The variants and their time table, for distile_kernel_num_variants, distile_kernel_variant_name,
 * distile_kernel_load_times and distile_kernel_add_time. It belongs to the kernel; null if that is null. */
DISTILE_API distile_kernel *distile_cuda_kernel_variants(distile_cuda_kernel *kernel);

/** A dense implementation of the same operator that the application brings, for instance cuDNN's. `run` puts on the
 * CUstream `stream` what computes every pixel of the output, epilogue and residual included, waits for nothing, and
 * returns 0 for success; the GPU's context is current. The residual is null for operators without one and never
 * overlaps the output. */
typedef struct distile_cuda_dense_candidate {
    const char *name; /**< Copied. The variant's name in choices, traces and time tables. */
    int (*run)(void *user, void *stream, const distile_tensor *input, const distile_tensor *residual,
               const distile_tensor *output);
    void *user; /**< Must live as long as the kernel. */
} distile_cuda_dense_candidate;

/** As distile_kernel_add_dense. */
DISTILE_API distile_status distile_cuda_kernel_add_dense(distile_cuda_kernel *kernel,
                                                         const distile_cuda_dense_candidate *candidate);

typedef struct distile_cuda_weights distile_cuda_weights;

/** Packs weights of the host's, as distile_weights_pack does, and copies them to the device. */
DISTILE_API distile_status distile_cuda_weights_pack(distile_cuda_kernel *kernel, const distile_weights_source *source,
                                                     distile_cuda_weights **weights);
/** Null is allowed. */
DISTILE_API void distile_cuda_weights_destroy(distile_cuda_weights *weights);

/* ---- Running ------------------------------------------------------------------------------ */

/** Zero-initialise, then set what the operator takes. Data begins at a multiple of 16 bytes, and strides are
 * multiples of 4 elements, in tensors whose number of channels is one. */
typedef struct distile_cuda_run_args {
    const distile_tensor *input;
    const distile_tensor *residual;
    const distile_tensor *output;
    const distile_cuda_weights *weights;
    distile_cuda_mask *mask;
    distile_inactive inactive;
    distile_store store;
    /** Null: the dispatcher chooses by the number of active tiles, which it waits for, once for every mask.
     * Otherwise the variant of that name runs without any wait: its launch is as large as the image, and the device
     * reads the number of tiles. Such a call can be captured in a graph together with the distile_cuda_mask_set_bytes
     * before it, once both ran outside of a capture with the same shapes (of dense variants, among the last 16 shapes).
     * The graph is valid as long as the mask, the kernel, the weights and the tensors. */
    const char *variant;
} distile_cuda_run_args;

/** As distile_run. Returns when everything is on the stream. In traces, the time that elapsed is the host's, from the
 * choice until then; of calls that name a variant, the numbers of tiles and pixels are -1, because the host does not
 * know them. */
DISTILE_API distile_status distile_cuda_run(distile_cuda_kernel *kernel, const distile_cuda_run_args *args);

#ifdef __cplusplus
}
#endif

#endif
