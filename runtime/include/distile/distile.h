/** \file
 * The C API of distile: masked operators that compute only the output pixels that a mask asks for.
 *
 * A context is of one device: a CPU (distile_context_create), or an NVIDIA GPU with a stream of the caller's
 * (distile_cuda_context_create in cuda.h). All other functions are the same on every device. On a GPU, pointers to
 * data are to its memory unless a comment says otherwise, and calls put their work on the stream and return without
 * waiting for it unless a comment says that they wait.
 *
 * Every function returns a distile_status. A call that does not return DISTILE_OK leaves its outputs as they were (but
 * see distile_run) and stores one sentence about the cause in the context, for distile_context_message(). Nothing here
 * throws, aborts or prints. On a GPU every call that works on it may also return OUT_OF_DEVICE_MEMORY, CAPTURING,
 * KERNEL or DEVICE_LOST, and every call that gets pointers to data NOT_DEVICE_MEMORY or BAD_ALIGNMENT.
 *
 * A context, and every mask, kernel and planner made from it, belongs to one thread at a time. Different contexts share
 * nothing that is written and may be used by different threads at once. Weights never change: all contexts of a device
 * may use them at once. Masks, kernels and planners must be destroyed before their context.
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

/** The DISTILE_VERSION of the library that runs. */
DISTILE_API int32_t distile_version(void);

typedef enum distile_status {
    DISTILE_OK = 0,
    DISTILE_ERROR_NULL_POINTER,  /**< A required pointer is null. */
    DISTILE_ERROR_BAD_VALUE,     /**< An enumerator, count or option is out of range, or a reserved field is not 0. */
    DISTILE_ERROR_BAD_SHAPE,     /**< A batch, height or width is not the one that is due, or too large. */
    DISTILE_ERROR_BAD_STRIDE,    /**< A stride is smaller than the extent that it spans, or above 2^31 elements. */
    DISTILE_ERROR_BAD_ALIGNMENT, /**< Data or strides are not aligned as the device needs it. */
    DISTILE_ERROR_BAD_TYPE,      /**< A data type that the operator was not built for. */
    DISTILE_ERROR_BAD_CHANNELS,  /**< A number of channels that the operator was not built for. */
    DISTILE_ERROR_BAD_MASK, /**< The mask has another shape than the output, holds no data, or is another context's. */
    DISTILE_ERROR_BAD_WEIGHTS,        /**< The weights were packed for another operator or device. */
    DISTILE_ERROR_ALIASING,           /**< Tensors overlap in a way that the operator does not allow. */
    DISTILE_ERROR_BAD_FILE,           /**< A file cannot be read, or is malformed. */
    DISTILE_ERROR_VERSION,            /**< A file or descriptor has a version that this library does not know. */
    DISTILE_ERROR_OTHER_OPERATOR,     /**< A time table belongs to another operator or other code. */
    DISTILE_ERROR_OTHER_DEVICE,       /**< The PolyKernel is for another kind of device than the context. */
    DISTILE_ERROR_UNSUPPORTED_DEVICE, /**< The kernels need features that this CPU or GPU lacks. */
    DISTILE_ERROR_OUT_OF_MEMORY,      /**< An allocation on the host or the start of a thread failed. */
    DISTILE_ERROR_KERNEL,   /**< A kernel or dense candidate reported an error; the output may be partly written. */
    DISTILE_ERROR_INTERNAL, /**< An exception that nobody expected, for instance from the caller's thread pool. */
    // The rest comes from GPUs only.
    DISTILE_ERROR_NO_DRIVER,            /**< There is no GPU driver on this machine. */
    DISTILE_ERROR_OLD_DRIVER,           /**< The GPU driver is too old for this library. */
    DISTILE_ERROR_NO_GPU,               /**< There is no GPU, or none of that number. */
    DISTILE_ERROR_OUT_OF_DEVICE_MEMORY, /**< An allocation on the GPU failed. */
    DISTILE_ERROR_NOT_DEVICE_MEMORY,    /**< A pointer is not to memory of this GPU. */
    DISTILE_ERROR_CAPTURING,            /**< The call would wait or take memory while a graph is being captured. */
    DISTILE_ERROR_DEVICE_LOST           /**< An earlier fault on the GPU made its context unusable. */
} distile_status;

/** The name of a status, for instance "DISTILE_ERROR_BAD_SHAPE". Never null. */
DISTILE_API const char *distile_status_name(distile_status status);

/** How the elements of a tensor are stored. Operators accumulate in float32 and round once, to nearest even. */
typedef enum distile_dtype {
    DISTILE_FLOAT32 = 1,
    DISTILE_FLOAT16 = 2, /**< IEEE half precision. */
    DISTILE_BFLOAT16 = 3
} distile_dtype;

/** Bytes of an element; 0 for a type that is not known. */
DISTILE_API size_t distile_dtype_size(distile_dtype dtype);

typedef enum distile_device { DISTILE_CPU = 1, DISTILE_CUDA = 2 } distile_device;

/* ---- Context ------------------------------------------------------------------------------ */

/** A device, and what calls on it share: threads, scratch memory, and the message of the last error. */
typedef struct distile_context distile_context;

/** One task of a parallel loop: called once for every index, possibly from several threads. */
typedef void (*distile_task)(void *closure, int32_t index);

/** A thread pool of the caller's. Runs task(closure, i) for all i in [0, count) and returns when all are done. May be
 * called from within a task. Must not throw: an exception ends the call with DISTILE_ERROR_INTERNAL, and tasks that
 * still run then are undefined behaviour. */
typedef void (*distile_parallel_for)(void *user, distile_task task, void *closure, int32_t count);

/** An allocator of the caller's for host memory. allocate returns memory aligned to `alignment` (a power of two), or
 * null. Both may be called from several threads at once and must not throw. */
typedef void *(*distile_allocate)(void *user, size_t bytes, size_t alignment);
typedef void (*distile_deallocate)(void *user, void *memory);

/** What the dispatcher chose for one call, and why. */
typedef struct distile_choice {
    const char *kernel;     /**< Name of the PolyKernel. */
    const char *variant;    /**< Name of the variant; owned by the kernel. */
    int32_t variant_index;  /**< Its index in [0, distile_kernel_num_variants). */
    int32_t dense;          /**< 1 if it is a dense candidate: it computes every output pixel. */
    int32_t tile_h, tile_w; /**< Its granularity in output pixels. */
    int64_t tiles;          /**< Tiles that it computes; -1 where only the GPU knows. */
    int64_t active_pixels;  /**< Output pixels that the mask asks for; -1 where only the GPU knows. */
    double predicted_us;    /**< Time that the table predicts, in microseconds; 0 if it has none. */
    /** In a trace, the time in microseconds that the variant took, with its tile list and the zeros of DISTILE_ZERO but
     * without the choice. On a GPU, the host's time until all of that was on the stream. */
    double elapsed_us;
} distile_choice;

/** Called after every distile_run that succeeds, on the thread that called it. Must not throw. */
typedef void (*distile_trace)(void *user, const distile_choice *choice);

/** Zero-initialise, then set what should differ from the default. */
typedef struct distile_context_options {
    /** Threads that a call may use, the caller's included, up to 4096; 0: one per core. */
    int32_t threads;
    /** The caller's thread pool; null: a pool of the context's own. It must live as long as the context. */
    distile_parallel_for parallel_for;
    void *parallel_for_user;
    /** The caller's allocator; null: the C library's. All host memory that grows with the caller's data comes from it:
     * scratch memory, masks, tile lists, weights and planners. It must live as long as the context and the weights that
     * were packed with it. */
    distile_allocate allocate;
    distile_deallocate deallocate; /**< Null exactly when allocate is. */
    void *allocator_user;
    distile_trace trace; /**< Null: no trace. */
    void *trace_user;
    /** Kernels take the CPU to have no more than these features, separated by spaces: of "sse41 avx avx2 fma f16c
     * avx512f avx512cd avx512bw avx512dq avx512vl"; "" leaves plain x86-64. So a machine runs the code of a
     * lesser one, for instance to get its results to the last bit. Null: all that the CPU has. Copied. */
    const char *cpu_features;
    int64_t reserved[4]; /**< 0 */
} distile_context_options;

/** Makes a context of this machine's CPU. `options` may be null. Threads start with the first call that can use them.
 * After an error distile_context_message(NULL) has the cause. Errors: NULL_POINTER, BAD_VALUE (also for a CPU feature
 * that the library does not know), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_context_create(const distile_context_options *options, distile_context **context);
/** Waits for all work of a GPU's context. Null is allowed. */
DISTILE_API void distile_context_destroy(distile_context *context);
/** What went wrong in the last call on this context that failed; "" if none did. Of null: in the last call of this
 * thread that failed to make a context. Valid until the next call. */
DISTILE_API const char *distile_context_message(const distile_context *context);
/** The kind of device; 0 if `context` is null. */
DISTILE_API distile_device distile_context_device(const distile_context *context);
/** What `threads` means in time tables: threads that a call may use, or the multiprocessors of a GPU's context; 0 if
 * `context` is null. */
DISTILE_API int32_t distile_context_threads(const distile_context *context);

/* ---- Masks -------------------------------------------------------------------------------- */

/** A boolean for every output pixel, [batch, height, width], kept as a bitmask, with its tile counts and lists, which
 * are made on demand and shared by every operator that uses the mask. Tokens are the pixels of images of one row. */
typedef struct distile_mask distile_mask;

/** Makes a mask that holds no data yet. Errors: NULL_POINTER, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_create(distile_context *context, distile_mask **mask);
/** Null is allowed. */
DISTILE_API void distile_mask_destroy(distile_mask *mask);

// Each of these sets the whole mask and drops the tile lists of the old one. Extents from 1 to 65535; on a GPU fewer
// than 2^31 pixels, and what is read must stay as it is until the stream has come to it.

/** From bytes, 0 for inactive and anything else for active: bytes[n * stride_n + y * stride_h + x]. Strides in bytes,
 * stride_h >= width, stride_n >= stride_h * height where batch > 1. Errors: NULL_POINTER, BAD_SHAPE, BAD_STRIDE,
 * OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_set_bytes(distile_mask *mask, const uint8_t *bytes, int32_t batch,
                                                  int32_t height, int32_t width, int64_t stride_n, int64_t stride_h);
/** From bits: pixel (n, y, x) is bit x % 32 of words[(n * height + y) * words_per_row + x / 32]; bits beyond the width
 * are ignored. Errors: NULL_POINTER, BAD_SHAPE, BAD_STRIDE (words_per_row is too small), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_set_bits(distile_mask *mask, const uint32_t *words, int32_t batch,
                                                 int32_t height, int32_t width, int64_t words_per_row);
/** From lists of active pixels, in any order: pixel indices[n * stride_n + i] = y * width + x of image n is active for
 * 0 <= i < counts[n]; with null `counts`, for i < stride_n. Repeated indices count once. On a CPU an index outside of
 * the image, or a count outside of [0, stride_n], is an error; on a GPU such indices are ignored, and counts are
 * clamped. Errors: NULL_POINTER, BAD_SHAPE, BAD_STRIDE (stride_n < 0), BAD_VALUE, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_set_indices(distile_mask *mask, const int32_t *indices, const int32_t *counts,
                                                    int32_t batch, int32_t height, int32_t width, int64_t stride_n);

/** The bits, as distile_mask_set_bits has them; bits beyond the width are 0. Valid until the mask is set again; on a
 * GPU, until it is set with another shape: with the same one, the new bits take the place of the old. Errors:
 * NULL_POINTER, BAD_MASK (it was never set). */
DISTILE_API distile_status distile_mask_bits(distile_mask *mask, const uint32_t **words, int32_t *words_per_row);

/** The number of active pixels. Waits for a GPU. Errors: NULL_POINTER, BAD_MASK (it was never set), CAPTURING,
 * OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_active_pixels(distile_mask *mask, int64_t *pixels);

/** Tiles of tile_h x tile_w output pixels with at least one active pixel, on the grid that starts at pixel (0, 0) of
 * every image. Entry t has its origin at x = xy[t] & 0xffff, y = xy[t] >> 16 of image[t]. Ordered by image, row and
 * column. */
typedef struct distile_tile_list {
    int64_t count; /**< -1 on a GPU, which has the number at device_count. */
    const uint32_t *xy;
    const uint32_t *image;
    const uint32_t *device_count; /**< Null on a CPU. */
} distile_tile_list;

/** Counts the active tiles at a granularity. Tile extents from 1 to 65535. Waits for a GPU. Errors: NULL_POINTER,
 * BAD_VALUE, BAD_MASK (it was never set), CAPTURING, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_count_tiles(distile_mask *mask, int32_t tile_h, int32_t tile_w, int64_t *count);
/** Lists the active tiles at a granularity. Valid until the mask is set again. On a GPU the arrays have room for every
 * tile of the grid and keep their place as long as the shape is the same, so that a graph in which the mask is set and
 * this is called makes them with every launch; a mask knows 65 granularities, those of kernels that chose by it
 * included. Errors: NULL_POINTER, BAD_VALUE (also one granularity more), BAD_MASK (it was never set), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_mask_tiles(distile_mask *mask, int32_t tile_h, int32_t tile_w,
                                              distile_tile_list *list);

/* ---- Tensors ------------------------------------------------------------------------------ */

/** An activation [batch, height, width, channels], channels innermost and contiguous. Other strides are free, in
 * elements, so a slice of the channels or a crop of a larger tensor is a view. Data is aligned to the size of an
 * element. On a GPU, where the channels of an operator fill whole units of 16 bytes, the data and all strides must be
 * multiples of 16 bytes, too. */
typedef struct distile_tensor {
    void *data; /**< Channel 0 of pixel (0, 0) of image 0. */
    distile_dtype dtype;
    int32_t batch, height, width, channels;
    int64_t stride_n, stride_h, stride_w;
    /** Rows and columns around every image that may be read and hold zeros. With a border as wide as the padding no
     * tile needs staging. 0 for a plain tensor. Ignored for outputs and residuals. */
    int32_t border_top, border_bottom, border_left, border_right;
} distile_tensor;

/** A contiguous float32 tensor without a border. For another type set `dtype` afterwards: strides are in elements. */
DISTILE_API distile_tensor distile_tensor_make(void *data, int32_t batch, int32_t height, int32_t width,
                                               int32_t channels);
/** Contiguous float32 tokens [batch, tokens, channels]: a tensor of height 1. Their mask has height 1, too. */
DISTILE_API distile_tensor distile_tokens_make(void *data, int32_t batch, int32_t tokens, int32_t channels);

/* ---- Kernels ------------------------------------------------------------------------------ */

/** A PolyKernel as the build emits it: constant data and code, maybe for several kinds of CPU. It must outlive the
 * kernels that are made from it. */
typedef struct distile_polykernel distile_polykernel;

/** A PolyKernel made ready for a context: its time table, which can be replaced, and caches. */
typedef struct distile_kernel distile_kernel;

/** Takes the PolyKernel, or where this CPU lacks one of its features, the first of those that stand behind it for
 * lesser CPUs and that this one can run. On a GPU the code is compiled, unless a cache has it, and loaded. Errors:
 * NULL_POINTER, VERSION, OTHER_DEVICE, BAD_CHANNELS (its groups do not divide its channels), UNSUPPORTED_DEVICE,
 * OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY. */
DISTILE_API distile_status distile_kernel_create(distile_context *context, const distile_polykernel *polykernel,
                                                 distile_kernel **kernel);
/** Waits for a GPU, which may be running the kernel. Null is allowed. */
DISTILE_API void distile_kernel_destroy(distile_kernel *kernel);

/** What a kernel computes, and which code it took. */
typedef struct distile_kernel_info {
    const char *name; /**< Of the PolyKernel. */
    const char *kind; /**< For instance "masked_conv2d". */
    distile_device device;
    const char *features; /**< That its code needs, for instance "avx2 fma f16c", or "sm_75". */
    distile_dtype dtype;  /**< Of activations and weights. */
    int32_t in_channels, out_channels;
    int32_t has_residual;
    int32_t num_variants; /**< Dense candidates included. */
} distile_kernel_info;

/** Errors: NULL_POINTER. */
DISTILE_API distile_status distile_kernel_get_info(const distile_kernel *kernel, distile_kernel_info *info);

/** The output's height and width for an input's; both 0 where there is no output pixel. Errors: NULL_POINTER,
 * BAD_SHAPE (an extent outside of 1 to 65535). */
DISTILE_API distile_status distile_kernel_output_shape(const distile_kernel *kernel, int32_t in_height,
                                                       int32_t in_width, int32_t *out_height, int32_t *out_width);

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

/** One variant of a kernel. */
typedef struct distile_variant_info {
    const char *name;       /**< Owned by the kernel. */
    int32_t tile_h, tile_w; /**< Granularity in output pixels. */
    int32_t dense;          /**< 1 if it computes every output pixel, whatever the mask. */
} distile_variant_info;

/** Errors: NULL_POINTER, BAD_VALUE (there is no variant of that index). */
DISTILE_API distile_status distile_kernel_get_variant(const distile_kernel *kernel, int32_t index,
                                                      distile_variant_info *info);

/** Replaces the time table by one from a file that `distile profile` wrote.
 * Errors: NULL_POINTER, BAD_FILE, VERSION, OTHER_OPERATOR (also times of other code for the same operator),
 * OUT_OF_MEMORY; the old table then stays. */
DISTILE_API distile_status distile_kernel_load_times(distile_kernel *kernel, const char *path);

/** Adds a point to the time table: the variant takes `microseconds` for `tiles` tiles with the context's
 * distile_context_threads. Replaces a point for the same number of tiles. A variant whose points are all of other
 * numbers of threads first gets those of the nearest one, multiplied so that they agree with this point; more points
 * then replace and refine them. Errors: NULL_POINTER, BAD_VALUE (no such variant, or a number that is not above 0),
 * OUT_OF_MEMORY. */
DISTILE_API distile_status distile_kernel_add_time(distile_kernel *kernel, const char *variant, int64_t tiles,
                                                   double microseconds);

/** A dense implementation of the same operator that the application brings, for instance oneDNN's or cuDNN's. `run`
 * computes every pixel of the output, epilogue and residual included, for tensors of any shape, and returns 0 for
 * success. On a GPU it puts that on `stream`, a CUstream, with the GPU's context current, and waits for nothing; on a
 * CPU `stream` is null. The residual is null for operators without one and never overlaps the output. Any other code
 * ends the call with KERNEL, and the message has the code. Must not throw. */
typedef struct distile_dense_candidate {
    const char *name; /**< Copied. The variant's name in choices, traces and time tables. */
    int (*run)(void *user, void *stream, const distile_tensor *input, const distile_tensor *residual,
               const distile_tensor *output);
    void *user; /**< Must live as long as the kernel. */
} distile_dense_candidate;

/** Adds a dense candidate to the kernel's variants. The dispatcher takes it where the time table says that it is
 * fastest, so give it times (its tiles are output pixels). The exactness of distile_run holds for it too: unless
 * every pixel is active it runs into scratch memory and its active pixels are copied, or in mode DISTILE_ZERO the
 * others are zeroed. Errors: NULL_POINTER, BAD_VALUE (a name that is taken), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_kernel_add_dense(distile_kernel *kernel, const distile_dense_candidate *candidate);

/* ---- Weights ------------------------------------------------------------------------------ */

/** Weights, packed for all variants of a PolyKernel. They never change and may outlive the context. */
typedef struct distile_weights distile_weights;

/** Order of the dimensions, outermost first: output channels, input channels, kernel rows (H) and columns (W). With
 * groups, the input channels are those of one group: as many as an output channel reads, one if it is depthwise.
 * PyTorch's transposed convolutions have IOHW. Linear layers have no rows and columns. */
typedef enum distile_weights_order {
    DISTILE_OIHW = 1,
    DISTILE_OHWI = 2,
    DISTILE_HWIO = 3,
    DISTILE_IOHW = 4,
    DISTILE_OI = DISTILE_OIHW, /**< Of a linear layer, as PyTorch has it. */
    DISTILE_IO = DISTILE_HWIO  /**< Of a linear layer: x * W. */
} distile_weights_order;

/** A contiguous filter and what is folded into it, in the host's memory on every device. Every vector has one float32
 * for each output channel; null leaves it out. With batch normalisation, mean and variance are both required, and the
 * operator computes gamma * (conv + bias - mean) / sqrt(variance + epsilon) + beta. */
typedef struct distile_weights_source {
    const void *filter;
    distile_dtype dtype; /**< Of the filter; 0: DISTILE_FLOAT32. It need not be the operator's. */
    distile_weights_order order;
    const float *bias;
    const float *bn_gamma, *bn_beta, *bn_mean, *bn_variance;
    float bn_epsilon;
    int64_t reserved[4]; /**< 0 */
} distile_weights_source;

/** Copies and packs; the source may be freed afterwards. Waits for a GPU. Any kernel of the same operator (geometry,
 * data type and layouts) can use the result, in any context of the same device. Errors: NULL_POINTER, BAD_VALUE,
 * BAD_TYPE, OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY. */
DISTILE_API distile_status distile_weights_pack(distile_kernel *kernel, const distile_weights_source *source,
                                                distile_weights **weights);
/** No call may be using them, on a GPU also none that is still on a stream. Null is allowed. */
DISTILE_API void distile_weights_destroy(distile_weights *weights);
/** Bytes that the packed weights hold on their device; 0 if `weights` is null. */
DISTILE_API int64_t distile_weights_bytes(const distile_weights *weights);

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
    /** Name of the variant to run; null: the dispatcher chooses. On a GPU it chooses by the number of active tiles,
     * for which it waits once for every mask. A named variant runs without any wait: its launch is as large as the
     * image, and the GPU reads the number of tiles. Such a call can be captured in a graph together with the call
     * before it that sets the mask, once both ran outside of a capture with the same shapes (of dense variants, among
     * the last 16 shapes). The graph is valid as long as the mask, the kernel, the weights and the tensors. */
    const char *variant;
    int64_t reserved[4]; /**< 0 */
} distile_run_args;

/** output = epilogue(operator(input) + bias [+ residual]) at the active pixels. The output may be the very same view as
 * the residual; otherwise it must not overlap the input or the residual (views of disjoint channels, or disjoint crops,
 * of one tensor do not). All arguments are checked before anything is written; only where a kernel itself fails
 * (KERNEL, or OUT_OF_MEMORY for its scratch) may the output be partly written. With DISTILE_ZERO, DISTILE_STORE_TILES
 * and a residual that is the output, inactive pixels of stored tiles are unspecified. Errors: NULL_POINTER, BAD_VALUE,
 * BAD_SHAPE, BAD_STRIDE, BAD_ALIGNMENT, BAD_TYPE, BAD_CHANNELS, BAD_MASK, BAD_WEIGHTS, ALIASING, OUT_OF_MEMORY, KERNEL;
 * on a GPU also OUT_OF_DEVICE_MEMORY, NOT_DEVICE_MEMORY, CAPTURING and DEVICE_LOST. */
DISTILE_API distile_status distile_run(distile_kernel *kernel, const distile_run_args *args);
/** The same with the variant of an index; `args->variant` must be null. Errors: as distile_run; BAD_VALUE also for an
 * index that no variant has. */
DISTILE_API distile_status distile_run_variant(distile_kernel *kernel, int32_t index, const distile_run_args *args);

/** Says which variant distile_run would choose for a mask and which time the table predicts; runs nothing. Waits for a
 * GPU. Errors: NULL_POINTER, BAD_MASK, CAPTURING, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_kernel_choose(distile_kernel *kernel, distile_mask *mask, distile_choice *choice);

#ifdef __cplusplus
}
#endif

#endif
