/** \file
 * The C API of distile: masked operators that compute only the output pixels a mask asks for.
 *
 * Every function returns a distile_status. A call that does not return DISTILE_OK leaves its
 * outputs as they were (but see distile_run) and stores one sentence about the cause in the context, which
 * distile_context_message() returns. Nothing here throws, aborts or prints.
 *
 * A context, and every mask, kernel and weights object made from it, belongs to one thread at a
 * time. Different contexts share nothing and may be used by different threads at once. Objects
 * must be destroyed before the context that they were made from.
 */
#ifndef DISTILE_DISTILE_H
#define DISTILE_DISTILE_H

#include <stddef.h>
#include <stdint.h>

#if defined(DISTILE_SHARED) && defined(__GNUC__)
#define DISTILE_API __attribute__((visibility("default")))
#else
#define DISTILE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define DISTILE_VERSION_MAJOR 0
#define DISTILE_VERSION_MINOR 1
#define DISTILE_VERSION_PATCH 0

typedef enum distile_status {
    DISTILE_OK = 0,
    DISTILE_ERROR_NULL_POINTER, /**< A required pointer is null. */
    DISTILE_ERROR_BAD_VALUE,    /**< An enumerator, count or option is outside its range. */
    DISTILE_ERROR_BAD_SHAPE,    /**< A batch, height or width is not the one that is due, or too large. */
    DISTILE_ERROR_BAD_STRIDE,   /**< A stride is smaller than the extent that it spans, or above 2^31 elements. */
    DISTILE_ERROR_BAD_TYPE,     /**< A data type that the operator was not built for. */
    DISTILE_ERROR_BAD_CHANNELS, /**< A number of channels that the operator was not built for. */
    DISTILE_ERROR_BAD_MASK, /**< The mask has another batch, height or width than the output, or holds no data yet. */
    DISTILE_ERROR_BAD_WEIGHTS,     /**< The weights were packed for another operator. */
    DISTILE_ERROR_ALIASING,        /**< Tensors overlap in a way that the operator does not allow. */
    DISTILE_ERROR_BAD_FILE,        /**< A file cannot be read, or is malformed. */
    DISTILE_ERROR_VERSION,         /**< A file or descriptor has a version that this library does not know. */
    DISTILE_ERROR_OTHER_OPERATOR,  /**< A time table or plan belongs to another operator. */
    DISTILE_ERROR_UNSUPPORTED_CPU, /**< The kernels need CPU features that this machine lacks. */
    DISTILE_ERROR_OUT_OF_MEMORY,   /**< An allocation or the start of a thread failed. */
    DISTILE_ERROR_KERNEL,          /**< A generated kernel reported an error; the output may be partly written. */
    // The rest comes from GPUs only.
    DISTILE_ERROR_NO_DRIVER,            /**< There is no GPU driver on this machine. */
    DISTILE_ERROR_OLD_DRIVER,           /**< The GPU driver is too old for this library. */
    DISTILE_ERROR_NO_GPU,               /**< There is no GPU, or none of that number. */
    DISTILE_ERROR_UNSUPPORTED_GPU,      /**< The GPU cannot run the kernels. */
    DISTILE_ERROR_OUT_OF_DEVICE_MEMORY, /**< An allocation on the GPU failed. */
    DISTILE_ERROR_NOT_DEVICE_MEMORY,    /**< A pointer is not to memory of this GPU. */
    DISTILE_ERROR_DEVICE_LOST           /**< An earlier fault on the GPU made its context unusable. */
} distile_status;

/** The name of a status, for instance "DISTILE_ERROR_BAD_SHAPE". Never null. */
DISTILE_API const char *distile_status_name(distile_status status);

typedef enum distile_dtype { DISTILE_FLOAT32 = 1 } distile_dtype;

/* ---- Context ------------------------------------------------------------------------------ */

typedef struct distile_context distile_context;

/** One task of a parallel loop: called once for every index, possibly from several threads. */
typedef void (*distile_task)(void *closure, int32_t index);

/** A thread pool of the caller's. Runs task(closure, i) for all i in [0, count) and returns when
 * all are done. May be called from within a task. */
typedef void (*distile_parallel_for)(void *user, distile_task task, void *closure, int32_t count);

/** An allocator of the caller's. allocate returns memory aligned to `alignment` (a power of two),
 * or null. Both may be called from several threads at once. */
typedef void *(*distile_allocate)(void *user, size_t bytes, size_t alignment);
typedef void (*distile_deallocate)(void *user, void *memory);

/** What the dispatcher chose for one call, and why. */
typedef struct distile_choice {
    const char *kernel;     /**< Name of the PolyKernel. */
    const char *variant;    /**< Name of the variant; owned by the kernel. */
    int32_t variant_index;  /**< Its index in [0, distile_kernel_num_variants). */
    int32_t dense;          /**< 1 if it is a dense candidate: it computes every output pixel. */
    int32_t tile_h, tile_w; /**< Its granularity in output pixels. */
    int64_t tiles;          /**< Tiles that it computes. */
    int64_t active_pixels;  /**< Output pixels that the mask asks for. */
    double predicted_us;    /**< Time that the table predicts, in microseconds; 0 if it has none. */
    /** In a trace, the time in microseconds that the variant took, with its tile list and the zeros of DISTILE_ZERO but
     * without the choice. On a GPU, the host's time until all of that was on the stream. */
    double elapsed_us;
} distile_choice;

/** Called after every distile_run, and distile_cuda_run, that succeeds when set, on the thread that called it. */
typedef void (*distile_trace)(void *user, const distile_choice *choice);

/** Zero-initialise, then set what should differ from the default. */
typedef struct distile_context_options {
    /** Threads that a call may use, the caller's included, up to 4096; 0: one per core. */
    int32_t threads;
    distile_parallel_for parallel_for; /**< The caller's thread pool; null: a pool of the context's own. */
    void *parallel_for_user;
    distile_allocate allocate;     /**< The caller's, for scratch memory and planners; null: aligned malloc. */
    distile_deallocate deallocate; /**< Null exactly when allocate is. */
    void *allocator_user;
    distile_trace trace; /**< Null: no trace. */
    void *trace_user;
    /** Kernels take the CPU to have no more than these features, separated by spaces: of "sse41 avx avx2 fma f16c
     * avx512f avx512cd avx512bw avx512dq avx512vl"; "" leaves plain x86-64. So a machine runs the code of a
     * lesser one, for instance to get its results to the last bit. Null: all that the CPU has. Copied. */
    const char *cpu_features;
} distile_context_options;

/** Makes a context. `options` may be null. Threads start with the first call that can use them. Errors:
 * NULL_POINTER, BAD_VALUE (also for a CPU feature that the library does not know), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_context_create(const distile_context_options *options, distile_context **context);
/** Null is allowed. */
DISTILE_API void distile_context_destroy(distile_context *context);
/** What went wrong in the last call on this context that failed; "" if none did. Valid until the next call. */
DISTILE_API const char *distile_context_message(const distile_context *context);
/** Threads that a call may use; 0 if `context` is null. */
DISTILE_API int32_t distile_context_threads(const distile_context *context);

/* ---- Masks -------------------------------------------------------------------------------- */

/** A boolean for every output pixel, [batch, height, width], kept as a bitmask; with its tile
 * counts and lists, which are made on demand and shared by every operator that uses the mask. */
typedef struct distile_mask distile_mask;

/** Makes a mask that holds no data yet. Errors: NULL_POINTER, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_create(distile_context *context, distile_mask **mask);
/** Null is allowed. */
DISTILE_API void distile_mask_destroy(distile_mask *mask);

/** Sets the mask from bytes, 0 for inactive and anything else for active, and drops the tile
 * lists of the old one. bytes[n * stride_n + y * stride_h + x]; strides in bytes, stride_h >= width,
 * stride_n >= stride_h * height where batch > 1. Extents from 1 to 65535.
 * Errors: NULL_POINTER, BAD_SHAPE, BAD_STRIDE, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_set_bytes(distile_mask *mask, const uint8_t *bytes, int32_t batch,
                                                  int32_t height, int32_t width, int64_t stride_n, int64_t stride_h);

/** One bit per pixel: pixel (n, y, x) is bit x % 64 of words[(n * height + y) * words_per_row + x / 64].
 * Bits beyond the width are 0. Valid until the mask is set again. Errors: NULL_POINTER, BAD_MASK (it was never set). */
DISTILE_API distile_status distile_mask_bits(distile_mask *mask, const uint64_t **words, int32_t *words_per_row);

/** The number of active pixels. Errors: NULL_POINTER, BAD_MASK (it was never set). */
DISTILE_API distile_status distile_mask_active_pixels(distile_mask *mask, int64_t *pixels);

/** Tiles of tile_h x tile_w output pixels with at least one active pixel, on the grid that starts at
 * pixel (0, 0) of every image. Entry t has its origin at x = xy[t] & 0xffff, y = xy[t] >> 16 of
 * image[t]. Ordered by image, row and column. */
typedef struct distile_tile_list {
    int64_t count;
    const uint32_t *xy;
    const uint32_t *image;
} distile_tile_list;

/** Counts the active tiles at a granularity. Tile extents from 1 to 65535. Errors: NULL_POINTER, BAD_VALUE, BAD_MASK
 * (it was never set), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_count_tiles(distile_mask *mask, int32_t tile_h, int32_t tile_w, int64_t *count);
/** Lists the active tiles at a granularity. Valid until the mask is set again. Errors: NULL_POINTER,
 * BAD_VALUE, BAD_MASK (it was never set), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_tiles(distile_mask *mask, int32_t tile_h, int32_t tile_w,
                                              distile_tile_list *list);

/* ---- Tensors ------------------------------------------------------------------------------ */

/** An activation [batch, height, width, channels], channels innermost and contiguous. Other strides
 * are free, in elements, so a slice of the channels or a crop of a larger tensor is a view. */
typedef struct distile_tensor {
    void *data; /**< Channel 0 of pixel (0, 0) of image 0. */
    distile_dtype dtype;
    int32_t batch, height, width, channels;
    int64_t stride_n, stride_h, stride_w;
    /** Rows and columns around every image that may be read and hold zeros. With a border as wide as
     * the padding no tile needs staging. 0 for a plain tensor. Ignored for outputs and residuals. */
    int32_t border_top, border_bottom, border_left, border_right;
} distile_tensor;

/** A contiguous tensor without a border. */
DISTILE_API distile_tensor distile_tensor_make(void *data, int32_t batch, int32_t height, int32_t width,
                                               int32_t channels);

/* ---- Kernels ------------------------------------------------------------------------------ */

/** A PolyKernel as the build emits it (see polykernel.h): constant data and code, maybe for several kinds of CPU. It
 * must outlive the kernels that are made from it. */
typedef struct distile_polykernel distile_polykernel;

/** A PolyKernel made ready for a context: its time table, which can be replaced, and caches. */
typedef struct distile_kernel distile_kernel;

/** Takes the PolyKernel, or where this CPU lacks one of its features, the first of those that stand behind it for
 * lesser CPUs and that this one can run. Errors: NULL_POINTER, VERSION, BAD_VALUE (the PolyKernel runs on a GPU),
 * BAD_CHANNELS (its groups do not divide its channels), UNSUPPORTED_CPU (it can run none), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_kernel_create(distile_context *context, const distile_polykernel *polykernel,
                                                 distile_kernel **kernel);
/** Null is allowed. */
DISTILE_API void distile_kernel_destroy(distile_kernel *kernel);

/** The PolyKernel that distile_kernel_create took: names, variants and times are its own. Null if `kernel` is null. */
DISTILE_API const distile_polykernel *distile_kernel_polykernel(const distile_kernel *kernel);

/** Rows and columns around an image. */
typedef struct distile_border {
    int32_t top, bottom, left, right;
} distile_border;

/** The zero border with which a kernel reads all of its input in place; all 0 if `kernel` is null. */
DISTILE_API distile_border distile_kernel_border(const distile_kernel *kernel);

/** The number of variants, dense candidates included; 0 if `kernel` is null. */
DISTILE_API int32_t distile_kernel_num_variants(const distile_kernel *kernel);
/** The name of a variant; null if there is none of that index. */
DISTILE_API const char *distile_kernel_variant_name(const distile_kernel *kernel, int32_t index);

/** Replaces the time table by one from a file that `distile profile` wrote.
 * Errors: NULL_POINTER, BAD_FILE, VERSION, OTHER_OPERATOR, OUT_OF_MEMORY; the old table then stays. */
DISTILE_API distile_status distile_kernel_load_times(distile_kernel *kernel, const char *path);

/** Adds a point to the time table: the variant takes `microseconds` for `tiles` tiles with this context's
 * threads, or this GPU's multiprocessors. Replaces a point for the same number of tiles. A variant whose points are all
 * of other numbers of threads first gets those of the nearest one, multiplied so that they agree with this point; more
 * points then replace and refine them. Errors: NULL_POINTER, BAD_VALUE (no such variant, or a number that is not above
 * 0), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_kernel_add_time(distile_kernel *kernel, const char *variant, int64_t tiles,
                                                   double microseconds);

/** A dense implementation of the same operator that the application brings, for instance a vendor's library.
 * `run` computes every pixel of the output, epilogue and residual included, returns 0 for success and may be
 * called with any shape. The residual is null for operators without one and never overlaps the output. Any other
 * code ends the call with KERNEL. The message then has the code, and not what was wrong in calls of distile's that the
 * candidate made. */
typedef struct distile_dense_candidate {
    const char *name; /**< Copied. The variant's name in choices, traces and time tables. */
    int (*run)(void *user, const distile_tensor *input, const distile_tensor *residual, const distile_tensor *output);
    void *user; /**< Must live as long as the kernel. */
} distile_dense_candidate;

/** Adds a dense candidate to the kernel's variants. The dispatcher takes it where the time table says that it is
 * fastest, so give it times (its tiles are output pixels). The exactness of distile_run holds for it too: unless
 * every pixel is active it runs into scratch memory and its active pixels are copied, or in mode DISTILE_ZERO the
 * others are zeroed. Errors: NULL_POINTER, BAD_VALUE (a name that is taken, or a kernel of a GPU), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_kernel_add_dense(distile_kernel *kernel, const distile_dense_candidate *candidate);

/* ---- Weights ------------------------------------------------------------------------------ */

/** Weights in the one layout that every variant of a PolyKernel reads. */
typedef struct distile_weights distile_weights;

/** Order of the dimensions, outermost first: output channels, input channels, kernel rows (H) and columns (W). With
 * groups, the input channels are those of one group: as many as an output channel reads, one if it is depthwise.
 * PyTorch's transposed convolutions have IOHW. */
typedef enum distile_weights_order {
    DISTILE_OIHW = 1,
    DISTILE_OHWI = 2,
    DISTILE_HWIO = 3,
    DISTILE_IOHW = 4
} distile_weights_order;

/** A contiguous float32 filter and what is folded into it. Every vector has one value for each
 * output channel; null leaves it out. With batch normalisation, mean and variance are both
 * required, and the operator computes gamma * (conv + bias - mean) / sqrt(variance + epsilon) + beta. */
typedef struct distile_weights_source {
    const float *filter;
    distile_weights_order order;
    const float *bias;
    const float *bn_gamma, *bn_beta, *bn_mean, *bn_variance;
    float bn_epsilon;
} distile_weights_source;

/** Copies and packs; the source may be freed afterwards. Any kernel of the same operator (shape,
 * data type and layout) can use the result. Errors: NULL_POINTER, BAD_VALUE, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_weights_pack(distile_kernel *kernel, const distile_weights_source *source,
                                                distile_weights **weights);
/** Null is allowed. */
DISTILE_API void distile_weights_destroy(distile_weights *weights);

/* ---- Running ------------------------------------------------------------------------------ */

/** What happens to the output pixels that the mask leaves out. */
typedef enum distile_inactive {
    DISTILE_KEEP = 0, /**< They keep what the output held. */
    DISTILE_ZERO = 1  /**< They become 0. */
} distile_inactive;

typedef enum distile_store {
    DISTILE_STORE_EXACT = 0, /**< Only active pixels are written. */
    DISTILE_STORE_TILES = 1  /**< Every pixel of the tiles that the chosen variant computes is written; a dense
                                  candidate computes them all. */
} distile_store;

/** Zero-initialise, then set what the operator takes. */
typedef struct distile_run_args {
    const distile_tensor *input;
    const distile_tensor *residual; /**< Exactly for operators with a residual. May be the output. */
    const distile_tensor *output;
    const distile_weights *weights;
    distile_mask *mask; /**< Of the output's batch, height and width. */
    distile_inactive inactive;
    distile_store store;
    const char *variant; /**< Name of the variant to run; null: the dispatcher chooses. */
} distile_run_args;

/** output = epilogue(conv(input) + bias [+ residual]) at the active pixels. The output may be the very
 * same view as the residual; otherwise it must not overlap the input or the residual (views of
 * disjoint channels of one tensor do not). All arguments are checked before anything is written; only where a kernel
 * itself fails (KERNEL, or OUT_OF_MEMORY for its scratch) may the output be partly written. With DISTILE_ZERO,
 * DISTILE_STORE_TILES and a residual that is the output, inactive pixels of stored tiles are unspecified.
 * Errors: NULL_POINTER, BAD_VALUE, BAD_SHAPE, BAD_STRIDE, BAD_TYPE, BAD_CHANNELS, BAD_MASK,
 * BAD_WEIGHTS, ALIASING, OUT_OF_MEMORY, KERNEL. */
DISTILE_API distile_status distile_run(distile_kernel *kernel, const distile_run_args *args);

/** Says which variant distile_run would choose for a mask and which time the table predicts; runs nothing. Errors:
 * NULL_POINTER, BAD_MASK (also a mask of another context), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_kernel_choose(distile_kernel *kernel, distile_mask *mask, distile_choice *choice);

#ifdef __cplusplus
}
#endif

#endif
