/** \file
 * The descriptor of a PolyKernel: what the build writes for the runtime to read. Applications only
 * pass its address to distile_kernel_create().
 */
#ifndef DISTILE_POLYKERNEL_H
#define DISTILE_POLYKERNEL_H

#include <distile/distile.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Raised when the structs below or the arguments of a kernel change. */
#define DISTILE_POLYKERNEL_VERSION 3

/** The output channels that one block of the canonical CPU weight layout holds. */
#define DISTILE_CPU_CHANNEL_BLOCK 16
/** The same of the CUDA weight layout. */
#define DISTILE_CUDA_CHANNEL_BLOCK 32

/** Every operator that the runtime knows how to call. */
typedef enum distile_operator_kind {
    DISTILE_MASKED_CONV2D = 1,
    /** A transposed convolution. Its padding is cut from the output; below and to the right it is less the output
     * padding, and may be negative. */
    DISTILE_MASKED_CONV_TRANSPOSE2D = 2,
    /** A convolution with stride 1 after nearest upsampling. The strides are the scales. */
    DISTILE_MASKED_UPSAMPLE_CONV2D = 3
} distile_operator_kind;

typedef enum distile_epilogue {
    DISTILE_EPILOGUE_NONE = 0,
    DISTILE_EPILOGUE_RELU = 1,
    DISTILE_EPILOGUE_RELU6 = 2,
    DISTILE_EPILOGUE_SILU = 3
} distile_epilogue;

/** The compile-time part of a masked convolution. Extents and padding in pixels. */
typedef struct distile_conv2d {
    int32_t in_channels, out_channels;
    int32_t groups; /**< Divides both: 1 where every output channel reads every input channel. */
    int32_t kernel_h, kernel_w;
    int32_t stride_h, stride_w;
    int32_t pad_top, pad_bottom, pad_left, pad_right;
    int32_t dilation_h, dilation_w;
    distile_epilogue epilogue;
    int32_t residual; /**< 1 if a residual is added before the epilogue. */
} distile_conv2d;

struct distile_hooks;

/** One launch of a CUDA kernel. Extents in blocks and threads; `arguments` as the driver takes them. */
typedef struct distile_cuda_launch {
    const char *kernel;
    int32_t blocks[3], threads[3];
    int32_t shared_bytes;
    void **arguments;
} distile_cuda_launch;

/** What generated code that runs on a GPU calls back. Each returns 0 for success. */
typedef struct distile_cuda_hooks {
    /** The kernels launched from now on are those of this PTX, which is the same code whenever its address is. */
    int (*use_module)(struct distile_hooks *hooks, const char *ptx, size_t bytes);
    int (*launch)(struct distile_hooks *hooks, const distile_cuda_launch *launch);
    /** Scratch memory on the device, until the generated function returns. */
    int (*allocate)(struct distile_hooks *hooks, uint64_t bytes, uint64_t *address);
} distile_cuda_hooks;

/** What a generated function calls back through its user_context. The code of a PolyKernel reaches its
 * context only through this struct, so that it needs no global state and may live in a library of its own. */
typedef struct distile_hooks {
    /** Runs task(closure, i) for every i in [0, count). */
    void (*parallel_for)(struct distile_hooks *hooks, distile_task task, void *closure, int32_t count);
    /** Scratch memory, aligned to 64 bytes; null if there is none. */
    void *(*allocate)(struct distile_hooks *hooks, size_t bytes);
    void (*deallocate)(struct distile_hooks *hooks, void *memory);
    /** Keeps the message of an error. */
    void (*report)(struct distile_hooks *hooks, const char *message);
    /** Null where there is no GPU. */
    const distile_cuda_hooks *cuda;
} distile_hooks;

/** A generated function in Halide's argv form: 0 for success. The arguments of a masked convolution are
 * user_context, input, tiles, bits, num_interior, num_tiles, threads, store_tiles, weights, bias [, residual], output;
 * those of one that runs on a GPU have a buffer with the number of tiles after bias, and their num_tiles is the most
 * that it may hold. */
typedef int (*distile_kernel_function)(void **args);

typedef struct distile_variant {
    const char *name;
    int32_t tile_h, tile_w; /**< Granularity in output pixels. */
    int32_t dense;          /**< 1: runs over every tile of the image, whatever the mask. */
    distile_kernel_function run;
} distile_variant;

/** One point of a time table: a variant takes `microseconds` for `tiles` tiles. */
typedef struct distile_time_point {
    int32_t variant;
    int32_t threads;
    int64_t tiles;
    double microseconds;
} distile_time_point;

struct distile_polykernel {
    uint32_t version; /**< DISTILE_POLYKERNEL_VERSION. */
    const char *name;
    distile_operator_kind kind;
    distile_dtype dtype;
    const char *layout; /**< Name of the weight layout, for instance "cpu-o16". */
    distile_conv2d conv2d;
    int32_t compute_capability; /**< Of the oldest GPU that runs the code, for instance 70; 0 for code of the CPU. */
    const char *cpu_features;   /**< Space-separated features that the code needs, for instance "avx2 fma f16c". */
    int32_t num_variants;
    const distile_variant *variants;
    int64_t num_times;               /**< Points of the built-in time table; 0 if the plan was never profiled. */
    const distile_time_point *times; /**< Ordered by variant, threads and tiles. */
    /** The same operator for CPUs that lack some of the features, in the same weight layout; null if there is none. */
    const distile_polykernel *otherwise;
};

#ifdef __cplusplus
}
#endif

#endif
