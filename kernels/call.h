/** \file
 * How the runtime calls the code of a PolyKernel, and what the code calls back. Both are of one version
 * (DISTILE_POLYKERNEL_VERSION).
 */
#ifndef DISTILE_KERNELS_CALL_H
#define DISTILE_KERNELS_CALL_H

#include <distile/polykernel.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An array as passed to code, innermost dimension first: 4 dimensions for an activation (channel, x, y, image), up to
 * 5 for packed weights. */
typedef struct distile_array {
    void *data; /**< The element at the minimum of every dimension. */
    distile_dtype dtype;
    int32_t dimensions;
    struct {
        int32_t min, extent, stride; /**< A minimum below 0 means a zero border. Strides in elements. */
    } dim[5];
} distile_array;

struct distile_hooks;

/** One call of a variant, the same for every device and every source of code. */
typedef struct distile_kernel_call {
    struct distile_hooks *hooks;   /**< Callbacks for the code. */
    const distile_array *operands; /**< The PolyKernel's operands, in its order. */
    int32_t num_operands;
    /** The tiles: tile_xy[t] = x | y << 16 and tile_image[t] = tile_xy[tile_capacity + t]. Null if the code needs no
     * list (distile_variant.listless_pixels). */
    const uint32_t *tile_xy;
    int32_t tile_capacity;
    int32_t num_tiles;    /**< On a GPU, the maximum. */
    int32_t num_interior; /**< The first num_interior tiles read only the input and its border; 0 on a GPU. */
    /** On a GPU, the device address of the number of tiles; null on a CPU and without a list. */
    const uint32_t *tile_count;
    /** The mask: pixel (n, y, x) is bit x % 32 of bits[(n * height + y) * words_per_row + x / 32]. */
    const uint32_t *bits;
    int32_t words_per_row, height, batch;
    int32_t threads;     /**< Threads that the call may use; on a GPU, the context's multiprocessors. */
    int32_t store_tiles; /**< 1: store every pixel of the tiles, not only the active ones. */
    int32_t fixed_order; /**< 1: the order of a pixel's sum may not depend on the number of tiles. */
    /** For operators with a key or a value; else null and 0. The active keys of all images, in the order and the format
     * of tile_xy, which lists the rows, as tiles of one pixel. Null: every key of every image is active. */
    const uint32_t *key_xy;
    int32_t key_capacity;
    /** The listed rows of image n begin at row_starts[n] and end before row_starts[n + 1], and its listed keys begin at
     * key_starts[n] and end before key_starts[n + 1]. key_starts is null if key_xy is. On a GPU, device addresses. */
    const uint32_t *row_starts, *key_starts;
    float scale; /**< The factor of the scores, never 0. */
    float slope; /**< The epilogue's, if it has one. */
} distile_kernel_call;

/** Returned by a distile_kernel_function when the hooks could not allocate. */
#define DISTILE_CALL_OUT_OF_MEMORY 1

/** An argument of an OpenCL kernel. */
typedef struct distile_opencl_argument {
    const void *value; /**< The argument, or for a buffer the uint64_t that is its address. */
    size_t bytes;
    int32_t is_buffer;
} distile_opencl_argument;

/** One kernel launch on a GPU. Extents in blocks and threads; `arguments` in the driver's form: on CUDA pointers to
 * them, on OpenCL pointers to distile_opencl_argument and then null. In OpenCL, local memory of shared_bytes follows as
 * the last argument. */
typedef struct distile_gpu_launch {
    const char *kernel;
    int32_t blocks[3], threads[3];
    int32_t shared_bytes; /**< Above 48 KB, the same in every launch of a kernel. */
    void **arguments;
    int32_t cluster; /**< Blocks of a cluster along x, which divide blocks[0]; 0 or 1: none. */
    int32_t early;   /**< 1: the kernel may start while earlier work of the stream still runs, and waits itself. */
} distile_gpu_launch;

/** Boxes of an activation on a GPU, which hardware copies to shared memory: `pixels_w` x `pixels_h` pixels that are
 * `step_w` and `step_h` apart, with 128 bytes of channels, swizzled by 128 bytes. Pixels beyond the activation are 0.
 */
typedef struct distile_gpu_boxes {
    const distile_array *array;
    int32_t pixels_w, pixels_h, step_w, step_h;
} distile_gpu_boxes;

/** Callbacks for GPU code. Each returns 0 for success. */
typedef struct distile_gpu_hooks {
    /** Later launches take their kernels from this module: on CUDA PTX, which ends with a 0 byte, or a cubin; on OpenCL
     * source. Equal addresses mean equal code. */
    int (*use_module)(struct distile_hooks *hooks, const char *code, size_t bytes);
    int (*launch)(struct distile_hooks *hooks, const distile_gpu_launch *launch);
    /** Gets the most blocks of such launches, whatever their number and arguments, that run at once. */
    int (*count_resident)(struct distile_hooks *hooks, const distile_gpu_launch *launch, int32_t *blocks);
    /** Allocates scratch memory on the device, valid until the kernel function returns. */
    int (*allocate)(struct distile_hooks *hooks, uint64_t bytes, uint64_t *address);
    /** Gets memory on the device that is 0 and that the code sets back to 0. All code of the context shares it. */
    int (*signals)(struct distile_hooks *hooks, uint64_t bytes, uint64_t *address);
    /** Encodes what copies such boxes: on CUDA a CUtensorMap of 128 bytes, aligned to 64. */
    int (*map_boxes)(struct distile_hooks *hooks, const distile_gpu_boxes *boxes, void *map);
    /** The bytes from the start of its OpenCL buffer to an address. Null elsewhere. */
    uint64_t (*offset_of)(struct distile_hooks *hooks, uint64_t address);
} distile_gpu_hooks;

/** Callbacks for code. Code reaches its context only through this struct, so it needs no global state and may live in
 * its own library. */
typedef struct distile_hooks {
    /** Runs task(closure, i) for every i in [0, count). */
    void (*parallel_for)(struct distile_hooks *hooks, distile_task task, void *closure, int32_t count);
    /** Allocates scratch memory aligned to 64 bytes; null on failure. */
    void *(*allocate)(struct distile_hooks *hooks, size_t bytes);
    void (*deallocate)(struct distile_hooks *hooks, void *memory);
    /** Stores an error message. */
    void (*report)(struct distile_hooks *hooks, const char *message);
    /** Null on a CPU. */
    const distile_gpu_hooks *gpu;
} distile_hooks;

#ifdef __cplusplus
}
#endif

#endif
