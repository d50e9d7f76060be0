/** \file
 * The C API of distile: operators that compute only the output pixels that a mask selects.
 *
 * A context belongs to one device: the CPU (distile_context_create), an NVIDIA GPU with the caller's stream
 * (distile_cuda_context_create in cuda.h), or an OpenCL device with the caller's queue (distile_opencl_context_create
 * in opencl.h), which below counts as a GPU, and its queue as a stream. All other functions are the same on every
 * device. On a GPU, data pointers are device pointers unless a comment says otherwise. Calls enqueue their work on the
 * stream and return without waiting unless a comment says that they wait.
 *
 * Calls return a distile_status. A call that does not return DISTILE_OK leaves its outputs unchanged (but see
 * distile_run) and stores one sentence about the cause in the context, for distile_context_message(). Nothing here
 * throws, aborts or prints. On a GPU, every call that uses the device may also return OUT_OF_DEVICE_MEMORY, CAPTURING,
 * KERNEL or DEVICE_LOST, and every call that takes data pointers NOT_DEVICE_MEMORY or BAD_ALIGNMENT.
 *
 * One thread at a time may use a context and the masks, kernels and planners made from it. Different contexts share no
 * mutable state, so different threads may use them at once. Weights never change: all contexts of a device may use them
 * at once. Destroy masks, kernels and planners before their context.
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
#define DISTILE_VERSION_MINOR 2
#define DISTILE_VERSION_PATCH 0
#define DISTILE_VERSION (DISTILE_VERSION_MAJOR * 10000 + DISTILE_VERSION_MINOR * 100 + DISTILE_VERSION_PATCH)

/** The DISTILE_VERSION of the loaded library. */
DISTILE_API int32_t distile_version(void);

typedef enum distile_status {
    DISTILE_OK = 0,
    DISTILE_ERROR_NULL_POINTER,   /**< A required pointer is null. */
    DISTILE_ERROR_BAD_VALUE,      /**< An enumerator, count or option is out of range, or a reserved field is not 0. */
    DISTILE_ERROR_BAD_SHAPE,      /**< A batch, height or width does not match or is too large. */
    DISTILE_ERROR_BAD_STRIDE,     /**< A stride is smaller than the extent it spans, or above 2^31 elements. */
    DISTILE_ERROR_BAD_ALIGNMENT,  /**< Data or strides lack the alignment that the device needs. */
    DISTILE_ERROR_BAD_TYPE,       /**< The operator was not built for this data type. */
    DISTILE_ERROR_BAD_CHANNELS,   /**< The operator was not built for this number of channels. */
    DISTILE_ERROR_BAD_MASK,       /**< The mask was never set, has the wrong shape, or belongs to another context. */
    DISTILE_ERROR_BAD_WEIGHTS,    /**< The weights were packed for another operator or device. */
    DISTILE_ERROR_ALIASING,       /**< Tensors overlap in a way that the operator does not allow. */
    DISTILE_ERROR_BAD_FILE,       /**< A file cannot be read or is malformed. */
    DISTILE_ERROR_VERSION,        /**< This library does not know the version of a file or descriptor. */
    DISTILE_ERROR_OTHER_OPERATOR, /**< A time table belongs to another operator or other code. */
    DISTILE_ERROR_OTHER_DEVICE,   /**< The PolyKernel is for another kind of device than the context. */
    DISTILE_ERROR_UNSUPPORTED_DEVICE, /**< The code needs features that the device lacks, or forbidden math. */
    DISTILE_ERROR_OUT_OF_MEMORY,      /**< A host allocation failed, or the system refused a resource. */
    DISTILE_ERROR_KERNEL,   /**< A kernel or dense candidate reported an error; the output may be partly written. */
    DISTILE_ERROR_INTERNAL, /**< An unexpected exception, for instance from the caller's thread pool. */
    // Only GPUs return the rest.
    DISTILE_ERROR_NO_DRIVER,            /**< This machine has no GPU driver. */
    DISTILE_ERROR_OLD_DRIVER,           /**< The GPU driver is too old for this library. */
    DISTILE_ERROR_NO_GPU,               /**< There is no GPU, or none with that number. */
    DISTILE_ERROR_OUT_OF_DEVICE_MEMORY, /**< An allocation on the GPU failed. */
    DISTILE_ERROR_NOT_DEVICE_MEMORY,    /**< A pointer does not point to memory of this GPU. */
    DISTILE_ERROR_CAPTURING,            /**< The call would wait or allocate while a graph is being captured. */
    DISTILE_ERROR_DEVICE_LOST           /**< An earlier fault on the GPU made its context unusable. */
} distile_status;

/** The name of a status, for instance "DISTILE_ERROR_BAD_SHAPE". Never null. */
DISTILE_API const char *distile_status_name(distile_status status);

/** How the elements of a tensor are stored. Operators accumulate in float32 and round once, to nearest even. Integers
 * are quantized (quantize.h): operators add their products as integers. Only operators that were built for them and the
 * functions of quantize.h take them. */
typedef enum distile_dtype {
    DISTILE_FLOAT32 = 1,
    DISTILE_FLOAT16 = 2, /**< IEEE half precision. */
    DISTILE_BFLOAT16 = 3,
    DISTILE_UINT8 = 4,
    DISTILE_INT8 = 5,
    DISTILE_INT4 = 6, /**< For filters only: integers from -8 to 7, two a byte, the first in its low half. */
    // OCP's types of 8 bits.
    DISTILE_FLOAT8_E4M3FN = 7, /**< Up to 448, without infinities: what is too large becomes +-448. */
    DISTILE_FLOAT8_E5M2 = 8    /**< Up to 57344: what is too large becomes infinite. */
} distile_dtype;

/** Bytes per element; 0 for DISTILE_INT4 and for an unknown type. */
DISTILE_API size_t distile_dtype_size(distile_dtype dtype);

typedef enum distile_device { DISTILE_CPU = 1, DISTILE_CUDA = 2, DISTILE_OPENCL = 3 } distile_device;

/* ---- Context ------------------------------------------------------------------------------ */

/** A device and what its calls share: threads, scratch memory, and the last error message. */
typedef struct distile_context distile_context;

/** The body of a parallel loop: called once per index, possibly from several threads. */
typedef void (*distile_task)(void *closure, int32_t index);

/** The caller's thread pool. Runs task(closure, i) for all i in [0, count) and returns when all are done. `count` is at
 * most the context's number of threads; a task stays until all work is done, and ends at once if it comes too late. So
 * the pool may run fewer at a time, in any order. Tasks never call it again. Must not throw: an exception ends the call
 * with DISTILE_ERROR_INTERNAL, and tasks that still run then are undefined behaviour. */
typedef void (*distile_parallel_for)(void *user, distile_task task, void *closure, int32_t count);

/** The caller's allocator for host memory. `allocate` returns memory aligned to `alignment` (a power of two), or null.
 * Several threads may call both at once. Neither may throw. */
typedef void *(*distile_allocate)(void *user, size_t bytes, size_t alignment);
typedef void (*distile_deallocate)(void *user, void *memory);

/** What the dispatcher chose for one call, and why. */
typedef struct distile_choice {
    const char *kernel;     /**< The PolyKernel's name. */
    const char *variant;    /**< The variant's name; owned by the kernel. "chosen on the device" if a GPU chooses. */
    int32_t variant_index;  /**< Its index in [0, distile_kernel_num_variants); -1 if a GPU chooses. */
    int32_t dense;          /**< 1 for a dense candidate, which computes every output pixel. */
    int32_t tile_h, tile_w; /**< Its granularity in output pixels; 0 if a GPU chooses. */
    int64_t tiles;          /**< Tiles that it computes; -1 if only the GPU knows. */
    int64_t active_pixels;  /**< Active output pixels of the mask; -1 if only the GPU knows. */
    double predicted_us;    /**< Time predicted by the table, in microseconds; 0 if it has none. */
    /** In a trace, the variant's time in microseconds, including the tile list and the zeroing of DISTILE_ZERO but not
     * the choice. On a GPU, the host's time to enqueue all of it. */
    double elapsed_us;
} distile_choice;

/** Called after every successful distile_run, on the calling thread. Must not throw. */
typedef void (*distile_trace)(void *user, const distile_choice *choice);

/** A function of each value, in float32. NaN stays NaN, and silu, gelu, hardswish and mish of minus infinity are NaN,
 * as in PyTorch. So is that of leaky_relu with the slope 0. */
typedef enum distile_activation {
    DISTILE_ACTIVATION_NONE = 0,
    DISTILE_ACTIVATION_RELU = 1,
    DISTILE_ACTIVATION_RELU6 = 2,       /**< min(max(x, 0), 6) */
    DISTILE_ACTIVATION_SILU = 3,        /**< x * sigmoid(x) */
    DISTILE_ACTIVATION_GELU = 4,        /**< x * Phi(x), with the error function. */
    DISTILE_ACTIVATION_SIGMOID = 5,     /**< 1 / (1 + exp(-x)) */
    DISTILE_ACTIVATION_HARDSIGMOID = 6, /**< relu6(x + 3) / 6 */
    DISTILE_ACTIVATION_HARDSWISH = 7,   /**< x * relu6(x + 3) / 6 */
    DISTILE_ACTIVATION_TANH = 8,        /**< tanh(x) */
    DISTILE_ACTIVATION_ELU = 9,         /**< x, or exp(x) - 1 below 0. */
    DISTILE_ACTIVATION_MISH = 10,       /**< x * tanh(log(1 + exp(x))) */
    DISTILE_ACTIVATION_LEAKY_RELU = 11  /**< x, or slope * x unless x > 0. The slope is any number that a call gives. */
} distile_activation;

/** How float32 operators multiply on a GPU. Sums are float32 in each. */
typedef enum distile_math {
    DISTILE_MATH_DEFAULT = 0, /**< As in PyTorch: TF32 for convolutions, float32 for linear layers. */
    DISTILE_MATH_FLOAT32 = 1,
    /** Tensor cores may multiply: both factors have 10 bits of mantissa instead of 23, and float32's range. */
    DISTILE_MATH_TF32 = 2
} distile_math;

/** Zero-initialise, then set only what differs from the default. */
typedef struct distile_context_options {
    /** Threads that a call may use, including the caller's, up to 4096; 0: one per core. */
    int32_t threads;
    /** The caller's thread pool; null: the context makes its own. It must outlive the context. */
    distile_parallel_for parallel_for;
    void *parallel_for_user;
    /** The caller's allocator; null: the C library's. It provides all host memory that grows with the caller's data:
     * scratch memory, masks, tile lists, weights and planners. It must outlive the context and the weights packed with
     * it. */
    distile_allocate allocate;
    distile_deallocate deallocate; /**< Null if and only if `allocate` is null. */
    void *allocator_user;
    distile_trace trace; /**< Null: no trace. */
    void *trace_user;
    /** Limits the CPU features that kernels use, separated by spaces, from "sse41 avx avx2 avx_vnni fma f16c avx512f
     * avx512cd avx512bw avx512dq avx512vl avx512_bf16 avx512_fp16 avx512_vnni amx_bf16 amx_fp16 amx_int8", on AArch64
     * "neon fp16 dotprod"; "" means plain x86-64 or AArch64 with neon. A machine can thus run a lesser CPU's code, for
     * instance to reproduce its results bit for bit. Null: all. Copied. */
    const char *cpu_features;
    distile_math math;   /**< The least exact math that kernels may use; without effect on a CPU. */
    int64_t reserved[4]; /**< 0 */
} distile_context_options;

/** Makes a context for this machine's CPU. `options` may be null. Threads start with the first call that can use them.
 * Where the system refuses some, no call fails: it runs in those that there are, at least the caller's. After an error,
 * distile_context_message(NULL) gives the cause. Errors: NULL_POINTER, BAD_VALUE (also for an unknown CPU feature),
 * OUT_OF_MEMORY. */
DISTILE_API distile_status distile_context_create(const distile_context_options *options, distile_context **context);
/** On a GPU, waits for all work of the context. Null is allowed. */
DISTILE_API void distile_context_destroy(distile_context *context);
/** The cause of the last failed call on this context; "" if none failed. With null: of this thread's last failed call
 * that had no context, because it was to make one or because its first argument was null. Valid until the next call.
 */
DISTILE_API const char *distile_context_message(const distile_context *context);
/** The context's device; 0 if `context` is null. */
DISTILE_API distile_device distile_context_device(const distile_context *context);
/** The `threads` of time tables: the threads that a call may use, or on a GPU the context's multiprocessors; 0 if
 * `context` is null. */
DISTILE_API int32_t distile_context_threads(const distile_context *context);

/* ---- Masks -------------------------------------------------------------------------------- */

/** One boolean per output pixel, [batch, height, width]. A mask holds a bitmask and makes its tile counts and lists on
 * demand; all operators that use the mask share them. Tokens are the pixels of one-row images. */
typedef struct distile_mask distile_mask;

/** Makes a mask that holds no data yet. Errors: NULL_POINTER, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_create(distile_context *context, distile_mask **mask);
/** Null is allowed. */
DISTILE_API void distile_mask_destroy(distile_mask *mask);

// Each of these sets the whole mask and drops the old tile lists. Extents range from 1 to 65535. On a GPU a mask has
// fewer than 2^31 pixels, and the source must stay unchanged until the stream has read it.

/** From bytes, 0 for inactive and anything else for active: bytes[n * stride_n + y * stride_h + x]. Strides are in
 * bytes; stride_h >= width, and stride_n >= stride_h * height if batch > 1, or 0: all images have the same bytes.
 * Errors: NULL_POINTER, BAD_SHAPE, BAD_STRIDE, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_set_bytes(distile_mask *mask, const uint8_t *bytes, int32_t batch,
                                                  int32_t height, int32_t width, int64_t stride_n, int64_t stride_h);
/** From bits: pixel (n, y, x) is bit x % 32 of words[(n * height + y) * words_per_row + x / 32]; bits beyond the width
 * are ignored. Errors: NULL_POINTER, BAD_SHAPE, BAD_STRIDE (words_per_row is too small), BAD_ALIGNMENT (words),
 * OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_set_bits(distile_mask *mask, const uint32_t *words, int32_t batch,
                                                 int32_t height, int32_t width, int64_t words_per_row);
/** From lists of active pixels, in any order: pixel indices[n * stride_n + i] = y * width + x of image n is active for
 * 0 <= i < counts[n]; with null `counts`, for i < stride_n. Repeated indices count once. On a CPU an index outside the
 * image or a count outside [0, stride_n] is an error; a GPU ignores such indices and clamps such counts. Errors:
 * NULL_POINTER, BAD_SHAPE, BAD_STRIDE (stride_n < 0), BAD_ALIGNMENT (indices, counts), BAD_VALUE, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_set_indices(distile_mask *mask, const int32_t *indices, const int32_t *counts,
                                                    int32_t batch, int32_t height, int32_t width, int64_t stride_n);

/** The bits, in the format of distile_mask_set_bits; bits beyond the width are 0. On a CPU, valid until the mask is set
 * again; on a GPU, until it is set to another shape: for the same shape, new bits overwrite the old ones. Errors:
 * NULL_POINTER, BAD_MASK (it was never set). */
DISTILE_API distile_status distile_mask_bits(distile_mask *mask, const uint32_t **words, int32_t *words_per_row);
/** Writes the mask as bytes, 1 where it is active and 0 elsewhere, in the format and with the strides of
 * distile_mask_set_bytes. On a GPU nothing waits. Errors: NULL_POINTER, BAD_MASK (it was never set), BAD_STRIDE. */
DISTILE_API distile_status distile_mask_get_bytes(distile_mask *mask, uint8_t *bytes, int64_t stride_n,
                                                  int64_t stride_h);
/** From now on, every call that sets the mask also writes it to this memory, as distile_mask_get_bytes would, until
 * this is called again; null bytes end it. On a GPU, calls that make the mask from scores or through a window need no
 * further launch for that. The memory must stay valid and must not overlap what these calls read. A call for a shape
 * that the strides do not fit returns BAD_STRIDE and leaves the mask as it is. Errors: NULL_POINTER (the mask). */
DISTILE_API distile_status distile_mask_mirror(distile_mask *mask, uint8_t *bytes, int64_t stride_n, int64_t stride_h);

/** The number of active pixels. Waits on a GPU. Errors: NULL_POINTER, BAD_MASK (it was never set), CAPTURING,
 * OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_active_pixels(distile_mask *mask, int64_t *pixels);

/** The tiles of tile_h x tile_w output pixels that contain an active pixel, on a grid from pixel (0, 0) of every image.
 * Tile t starts at x = xy[t] & 0xffff, y = xy[t] >> 16 of image[t]. Ordered by image, row and column. */
typedef struct distile_tile_list {
    int64_t count; /**< -1 on a GPU, which stores the number at device_count. */
    const uint32_t *xy;
    const uint32_t *image;
    const uint32_t *device_count; /**< Null on a CPU. */
} distile_tile_list;

/** Counts the active tiles at a granularity. Tile extents range from 1 to 65535. Waits on a GPU. Errors: NULL_POINTER,
 * BAD_VALUE, BAD_MASK (it was never set), CAPTURING, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_count_tiles(distile_mask *mask, int32_t tile_h, int32_t tile_w, int64_t *count);
/** Lists the active tiles at a granularity. Valid until the mask is set again. On a GPU the arrays have room for every
 * tile of the grid and keep their addresses as long as the shape stays the same, so a graph that captures setting the
 * mask and this call rebuilds them at every launch. A mask holds up to 65 granularities, including those that kernels
 * needed for their choice. Errors: NULL_POINTER, BAD_VALUE (also too many granularities), BAD_MASK (it was never set),
 * OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_tiles(distile_mask *mask, int32_t tile_h, int32_t tile_w,
                                              distile_tile_list *list);

/* ---- Tensors ------------------------------------------------------------------------------ */

/** An activation [batch, height, width, channels] with contiguous channels, innermost. Other strides are free, in
 * elements, so a slice of the channels or a crop of a larger tensor is a view. Data must be aligned to the element
 * size. On a GPU, if a pixel's channels fill a multiple of 16 bytes, the data and all strides must also be multiples of
 * 16 bytes. */
typedef struct distile_tensor {
    void *data; /**< Channel 0 of pixel (0, 0) of image 0. */
    distile_dtype dtype;
    int32_t batch, height, width, channels;
    int64_t stride_n, stride_h, stride_w;
    /** Readable rows and columns of zeros around every image, in quantized tensors of zero points. With a border as
     * wide as the padding, no tile needs staging. 0 for a plain tensor. Ignored for outputs and residuals. */
    int32_t border_top, border_bottom, border_left, border_right;
} distile_tensor;

/** A contiguous float32 tensor without a border. For another type, change `dtype` afterwards: strides are in
 * elements. */
DISTILE_API distile_tensor distile_tensor_make(void *data, int32_t batch, int32_t height, int32_t width,
                                               int32_t channels);
/** Contiguous float32 tokens [batch, tokens, channels]: a tensor of height 1. Their mask has height 1 too. */
DISTILE_API distile_tensor distile_tokens_make(void *data, int32_t batch, int32_t tokens, int32_t channels);

/* ---- Kernels ------------------------------------------------------------------------------ */

/** A PolyKernel as the build emits it: constant data and code, possibly for several kinds of CPU. It must outlive the
 * kernels made from it. */
typedef struct distile_polykernel distile_polykernel;

/** A PolyKernel prepared for a context, with its replaceable time table and caches. */
typedef struct distile_kernel distile_kernel;

/** Takes the PolyKernel or, if this device lacks one of its features or the context does not allow its math, its first
 * fallback that this device can run. On a GPU, compiles the code unless a cache has it, and loads it. Errors:
 * NULL_POINTER, VERSION, OTHER_DEVICE, BAD_CHANNELS (the groups do not divide the channels), UNSUPPORTED_DEVICE,
 * OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY. */
DISTILE_API distile_status distile_kernel_create(distile_context *context, const distile_polykernel *polykernel,
                                                 distile_kernel **kernel);
/** Waits on a GPU, which may still run the kernel. Null is allowed. */
DISTILE_API void distile_kernel_destroy(distile_kernel *kernel);

/** What a kernel computes, and which code it runs. */
typedef struct distile_kernel_info {
    const char *name; /**< The PolyKernel's name. */
    const char *kind; /**< For instance "masked_conv2d". */
    distile_device device;
    const char *features;       /**< What its code needs, for instance "avx2 fma f16c" or "sm_75". */
    distile_dtype dtype;        /**< The storage type of activations. */
    distile_dtype output_dtype; /**< The type of the output and the residual, which differs from `dtype` only if they
                                   are quantized. */
    int32_t in_channels, out_channels; /**< 0 for the channels of scores, of which each key has one. */
    int32_t has_residual;
    int32_t num_variants; /**< Including dense candidates. */
    distile_math math;    /**< DISTILE_MATH_FLOAT32 or DISTILE_MATH_TF32: how its code multiplies float32. */
} distile_kernel_info;

/** Errors: NULL_POINTER. */
DISTILE_API distile_status distile_kernel_get_info(const distile_kernel *kernel, distile_kernel_info *info);

/** The output's height and width for an input of this size; both 0 if the output is empty. Errors: NULL_POINTER,
 * BAD_SHAPE (an extent outside 1 to 65535). */
DISTILE_API distile_status distile_kernel_output_shape(const distile_kernel *kernel, int32_t in_height,
                                                       int32_t in_width, int32_t *out_height, int32_t *out_width);

/** Rows and columns around an image. */
typedef struct distile_border {
    int32_t top, bottom, left, right;
} distile_border;

/** The zero border that lets a kernel read its whole input in place; all 0 if `kernel` is null. */
DISTILE_API distile_border distile_kernel_border(const distile_kernel *kernel);

/** The number of variants, including dense candidates; 0 if `kernel` is null. */
DISTILE_API int32_t distile_kernel_num_variants(const distile_kernel *kernel);
/** The name of a variant; null if the index is out of range. */
DISTILE_API const char *distile_kernel_variant_name(const distile_kernel *kernel, int32_t index);

/** One variant of a kernel. */
typedef struct distile_variant_info {
    const char *name;       /**< Owned by the kernel. */
    int32_t tile_h, tile_w; /**< Granularity in output pixels. */
    int32_t dense;          /**< 1 if it computes every output pixel, whatever the mask. */
} distile_variant_info;

/** Errors: NULL_POINTER, BAD_VALUE (the index is out of range). */
DISTILE_API distile_status distile_kernel_get_variant(const distile_kernel *kernel, int32_t index,
                                                      distile_variant_info *info);

/** Replaces the time table with one from a file that `distile profile` wrote. An error keeps the old table. Errors:
 * NULL_POINTER, BAD_FILE, VERSION, OTHER_OPERATOR (also times of other code for the same operator), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_kernel_load_times(distile_kernel *kernel, const char *path);

/** Adds a point to the time table: the variant takes `microseconds` for `tiles` tiles with the context's
 * distile_context_threads. Replaces a point with the same number of tiles. If the variant has points for other numbers
 * of threads only, it first copies what these give for this number, scaled to agree with this point; more points refine
 * it. Errors: NULL_POINTER, BAD_VALUE (no such variant, or a number that is not above 0), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_kernel_add_time(distile_kernel *kernel, const char *variant, int64_t tiles,
                                                   double microseconds);

struct distile_run_args;

/** The application's own dense implementation of the same operator, for instance from oneDNN or cuDNN. `run` computes
 * every output pixel from the whole input, including epilogue and residual, or every row from every key, for tensors of
 * any shape, and returns 0 for success. Any other code ends the call with KERNEL, and the message reports the code. On
 * a GPU, `run` enqueues its work on `stream`, a CUstream, with the GPU's context current, and does not wait; on a CPU
 * `stream` is null. Must not throw.
 *
 * The arguments are the call's, valid until `run` returns, with these exceptions: `output` may be scratch memory of the
 * same shape and type with other strides; masks, weights and `variant` are null; `inactive` and `store` are 0; `scale`
 * is the factor itself for operators that compute scores. The residual never overlaps the output. */
typedef struct distile_dense_candidate {
    const char *name; /**< The variant's name in choices, traces and time tables. Copied. */
    int (*run)(void *user, void *stream, const struct distile_run_args *args);
    void *user; /**< Must outlive the kernel. */
} distile_dense_candidate;

/** Adds a dense candidate to the kernel's variants. The dispatcher takes it when the time table says that it is
 * fastest, so give it times (its tiles are output pixels, or rows). distile_run stays exact: unless every pixel is
 * active, the candidate writes to scratch memory and the runtime copies the active pixels or, in mode DISTILE_ZERO,
 * zeros the others.
 *
 * A candidate reads every key. So it takes part in the choice only if every key is active, and a call that names it
 * with a key mask that leaves keys out fails. On a GPU, the host must read the key mask's count to know. The choice
 * waits for it, once per key mask and only if the candidate would be fastest, and leaves the candidate out during a
 * graph capture and for a key mask that a graph sets. A call that names a candidate never waits, so on a GPU its key
 * mask must be null.
 *
 * Errors: NULL_POINTER, BAD_VALUE (the name is taken), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_kernel_add_dense(distile_kernel *kernel, const distile_dense_candidate *candidate);

/* ---- Weights ------------------------------------------------------------------------------ */

/** Weights, packed for all variants of a PolyKernel. They never change and may outlive the context. */
typedef struct distile_weights distile_weights;

/** The order of the dimensions, outermost first: output channels, input channels, kernel rows (H) and columns (W). With
 * groups, I counts only the input channels that one output channel reads; a depthwise filter has one. PyTorch's
 * transposed convolutions use IOHW. Linear layers have no rows and columns. */
typedef enum distile_weights_order {
    DISTILE_OIHW = 1,
    DISTILE_OHWI = 2,
    DISTILE_HWIO = 3,
    DISTILE_IOHW = 4,
    DISTILE_OI = DISTILE_OIHW, /**< For linear layers, as in PyTorch. */
    DISTILE_IO = DISTILE_HWIO  /**< For linear layers: x * W. */
} distile_weights_order;

struct distile_quantization;

/** A contiguous filter and the vectors to fold into it, in host memory for every device. Each vector has one float32
 * per output channel; null omits it. Batch normalisation needs both mean and variance; it computes gamma * (conv + bias
 * - mean) / sqrt(variance + epsilon) + beta. A quantized operator takes a filter of DISTILE_INT8 or DISTILE_INT4 and no
 * batch normalisation: distile_quantize_filter() in quantize.h makes one from float32, and folds. */
typedef struct distile_weights_source {
    const void *filter;
    distile_dtype dtype; /**< The filter's type, whatever the operator's; 0: DISTILE_FLOAT32. */
    distile_weights_order order;
    const float *bias;
    const float *bn_gamma, *bn_beta, *bn_mean, *bn_variance;
    float bn_epsilon;
    const struct distile_quantization *quantization; /**< Required by quantized operators (quantize.h), else null. */
    const float *slope;                              /**< One number, for an epilogue with a slope; null: 0.01. */
    int64_t reserved[2];                             /**< 0 */
} distile_weights_source;

/** Copies and packs; the caller may then free the source. Waits on a GPU. Any kernel of the same operator (geometry,
 * data type and layouts) can use the result, in any context of the same device. Errors: NULL_POINTER, BAD_VALUE (also
 * an operator without weights), BAD_ALIGNMENT (an array is not aligned to its elements), BAD_TYPE, OUT_OF_MEMORY,
 * OUT_OF_DEVICE_MEMORY. */
DISTILE_API distile_status distile_weights_pack(distile_kernel *kernel, const distile_weights_source *source,
                                                distile_weights **weights);
/** No call may still use them; on a GPU this includes calls still on a stream. Null is allowed. */
DISTILE_API void distile_weights_destroy(distile_weights *weights);
/** Bytes that the packed weights occupy on their device; 0 if `weights` is null. */
DISTILE_API int64_t distile_weights_bytes(const distile_weights *weights);

/* ---- Running ------------------------------------------------------------------------------ */

/** What happens to inactive output pixels. */
typedef enum distile_inactive {
    DISTILE_KEEP = 0, /**< Inactive pixels keep their values. */
    DISTILE_ZERO = 1  /**< Inactive pixels become 0; in a quantized output, its zero point. */
} distile_inactive;

typedef enum distile_store {
    DISTILE_STORE_EXACT = 0, /**< Only active pixels are written. */
    DISTILE_STORE_TILES = 1  /**< Every pixel of the chosen variant's tiles is written; a dense one writes all. */
} distile_store;

/** Zero-initialise, then set what the operator needs. */
typedef struct distile_run_args {
    const distile_tensor *input;
    const distile_tensor *residual; /**< Required if the operator has a residual, else null. May be the output. */
    const distile_tensor *output;
    const distile_weights *weights;
    /** Has the output's batch, height and width; of scores, which all heads share, height 1. */
    distile_mask *mask;
    distile_inactive inactive;
    distile_store store;
    /** The variant to run; null: the dispatcher chooses. On a GPU the host's choice needs the tile counts, so it waits
     * once per mask. Two kinds of calls never wait: with a named variant, whose launch covers the whole image while the
     * GPU reads the number of tiles; and where the GPU chooses, in contexts with the option choose_on_device (cuda.h)
     * and for masks that a graph sets. A graph can capture both together with the call that sets the mask, once all
     * have run outside a capture with the same shapes (among the last 16 shapes, for a dense variant or a choice). In
     * the graph the GPU chooses for every mask, by the time table of the capture. The graph stays valid as long as the
     * mask, the kernel, the weights and the tensors. */
    const char *variant;
    /** Tokens of the input's batch and of equal lengths: both are required by attention, the key by scores, and the
     * value by products with values; else null. `weights` is null for all of these. */
    const distile_tensor *key, *value;
    /** The active keys, [batch, 1, key tokens]; null: every key. Rows of an image without an active key become 0.
     * Dense candidates need every key (distile_kernel_add_dense). */
    distile_mask *key_mask;
    float scale; /**< Factor of the scores; 0: 1 / sqrt(head_dim). 0 for operators without scores. */
    /** 1: a pixel's sum is added up in an order that follows from the variant alone, so a part of a mask gives the bits
     * of the whole. 0: variants for tensor cores that balance their work may share the sums of some pixels among
     * multiprocessors, by how many pixels there are; only calls with as many have the same bits then. */
    int32_t fixed_order;
    int64_t reserved[4]; /**< 0 */
} distile_run_args;

/** Computes output = epilogue(operator(input) + bias [+ residual]) at the active pixels, or attention of the active
 * rows to the active keys. The output may be the same view as the residual; otherwise it must not overlap what the
 * operator reads (disjoint channels or crops of one tensor do not overlap). All arguments are checked before anything
 * is written. Only if a kernel itself fails (KERNEL, or OUT_OF_MEMORY for its scratch) may the output be partly
 * written. With DISTILE_ZERO, DISTILE_STORE_TILES and a residual that is the output, inactive pixels of stored tiles
 * are unspecified. Errors: NULL_POINTER, BAD_VALUE, BAD_SHAPE, BAD_STRIDE, BAD_ALIGNMENT, BAD_TYPE, BAD_CHANNELS,
 * BAD_MASK, BAD_WEIGHTS, ALIASING, OUT_OF_MEMORY, KERNEL; on a GPU also OUT_OF_DEVICE_MEMORY, NOT_DEVICE_MEMORY,
 * CAPTURING and DEVICE_LOST. */
DISTILE_API distile_status distile_run(distile_kernel *kernel, const distile_run_args *args);
/** Runs the variant with this index; `args->variant` must be null. Errors: as distile_run, and BAD_VALUE if the index
 * is out of range. */
DISTILE_API distile_status distile_run_variant(distile_kernel *kernel, int32_t index, const distile_run_args *args);

/** Reports which variant distile_run would choose for a mask, if every key is active, and the time that the table
 * predicts; runs nothing. Waits on a GPU. Errors: NULL_POINTER, BAD_MASK, CAPTURING, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_kernel_choose(distile_kernel *kernel, distile_mask *mask, distile_choice *choice);

#ifdef __cplusplus
}
#endif

#endif
