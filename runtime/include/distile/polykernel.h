/** \file
 * The descriptor of a PolyKernel, which the build writes and the runtime reads. Applications only pass its address to
 * distile_kernel_create().
 */
#ifndef DISTILE_POLYKERNEL_H
#define DISTILE_POLYKERNEL_H

#include <distile/distile.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Raised whenever a struct below or the calling convention changes. */
#define DISTILE_POLYKERNEL_VERSION 16

/** Output channels per block of the weight layouts "cpu-o16", "cuda-o32" and "opencl-o32". */
#define DISTILE_CPU_CHANNEL_BLOCK 16
#define DISTILE_CUDA_CHANNEL_BLOCK 32
#define DISTILE_OPENCL_CHANNEL_BLOCK 32

/* ---- Operators ---------------------------------------------------------------------------- */

/** The operator kinds. A PolyKernel's `op` points to the struct named beside its kind. */
typedef enum distile_operator_kind {
    DISTILE_MASKED_CONV2D = 1, /**< distile_conv2d */
    /** distile_conv2d. The padding is cut from the output. At the bottom and right it is reduced by the output padding
     * and may be negative. */
    DISTILE_MASKED_CONV_TRANSPOSE2D = 2,
    /** distile_conv2d. A convolution with stride 1 after nearest upsampling; the strides are the scales. */
    DISTILE_MASKED_UPSAMPLE_CONV2D = 3,
    DISTILE_MASKED_LINEAR = 4,    /**< distile_linear */
    DISTILE_MASKED_ATTENTION = 5, /**< distile_attention */
    DISTILE_MASKED_MATMUL = 6     /**< distile_matmul */
} distile_operator_kind;

/** The compile-time parameters of a masked convolution. Extents and padding in pixels. */
typedef struct distile_conv2d {
    int32_t in_channels, out_channels;
    int32_t groups; /**< Divides both channel counts; 1: every output channel reads every input channel. */
    int32_t kernel_h, kernel_w;
    int32_t stride_h, stride_w;
    int32_t pad_top, pad_bottom, pad_left, pad_right;
    int32_t dilation_h, dilation_w;
    distile_activation epilogue;
    int32_t residual; /**< 1 if a residual is added before the epilogue. */
} distile_conv2d;

/** The compile-time parameters of a masked linear layer over tokens. */
typedef struct distile_linear {
    int32_t in_channels, out_channels;
    distile_activation epilogue;
    int32_t residual; /**< 1 if a residual is added before the epilogue. */
} distile_linear;

/** The compile-time parameters of masked attention. Queries, keys, values and the output are tokens [batch, 1, tokens,
 * heads * head_dim]; head h has the channels from h * head_dim. */
typedef struct distile_attention {
    int32_t heads, head_dim;
    /** 1: row r sees the keys up to r + (key tokens - tokens), by their positions in the full sequences. */
    int32_t causal;
} distile_attention;

/** The products of attention as operators of their own. */
typedef enum distile_product {
    /** Queries times keys, scaled: [batch, heads, tokens, key tokens]. */
    DISTILE_SCORES = 1,
    /** Probabilities [batch, heads, tokens, key tokens] times values: tokens. */
    DISTILE_VALUES = 2
} distile_product;

/** The compile-time parameters of a masked matrix product, batched over images and heads. */
typedef struct distile_matmul {
    int32_t heads, head_dim;
    int32_t product; /**< distile_product */
    int32_t softmax; /**< 1: scores become probabilities, by a softmax over the active keys. */
    /** 1: column j of a row of scores is that of the image's j-th active key, and later ones are neither written nor
     * read. 0: column j is that of key j. */
    int32_t packed_columns;
} distile_matmul;

/** An operand's role in its operator. */
typedef enum distile_role {
    DISTILE_ROLE_INPUT = 1,    /**< The activation that the operator's window reads; queries or probabilities. */
    DISTILE_ROLE_WEIGHTS = 2,  /**< Packed, in the variant's layout. */
    DISTILE_ROLE_BIAS = 3,     /**< Packed, one value per output channel. */
    DISTILE_ROLE_RESIDUAL = 4, /**< An activation with the output's shape. */
    DISTILE_ROLE_OUTPUT = 5,
    DISTILE_ROLE_KEY = 6,   /**< Tokens of the input's batch. */
    DISTILE_ROLE_VALUE = 7, /**< Tokens of the input's batch, as many as the key has. */
    /** Packed, for quantized operators, between the bias and the residual: distile_requantization and what follows it,
     * in words of 32 bits, declared as DISTILE_FLOAT32. */
    DISTILE_ROLE_REQUANTIZATION = 8
} distile_role;

/** An operand of an operator. */
typedef struct distile_operand {
    distile_role role;
    distile_dtype dtype; /**< Storage type. Code accumulates in float32, or from types of 8 bits in int32. */
    int32_t channels;    /**< 0: as many as the key or the value has tokens. */
} distile_operand;

/* ---- Calling code ------------------------------------------------------------------------- */

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
    /** For operators with a key or a value; else null and 0. The active keys of all images, in the order and the format
     * of tile_xy, which lists the rows, as tiles of one pixel. Null: every key of every image is active. */
    const uint32_t *key_xy;
    int32_t key_capacity;
    /** The listed rows of image n begin at row_starts[n] and end before row_starts[n + 1]; its listed keys begin at
     * key_starts[n] and end before key_starts[n + 1]. key_starts is null if key_xy is. On a GPU, device addresses. */
    const uint32_t *row_starts, *key_starts;
    float scale; /**< The factor of the scores, never 0. */
} distile_kernel_call;

/** Returned by a distile_kernel_function when the hooks could not allocate. */
#define DISTILE_CALL_OUT_OF_MEMORY 1

/** Returns 0 for success; any other value ends the call with an error. */
typedef int (*distile_kernel_function)(const distile_kernel_call *call);

/** What a GPU chooses a variant by. Known to the runtime and to code of the same version only. */
struct distile_gpu_choice;

/** Makes the one of these calls that the GPU chooses; variants[i] is the variant of calls[i]. The return value is that
 * of a distile_kernel_function. */
typedef int (*distile_choice_function)(const distile_kernel_call *calls, const int32_t *variants, int32_t num_calls,
                                       const struct distile_gpu_choice *choice);

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

/** A Halide-generated function in argv form; returns 0 for success. */
typedef int (*distile_halide_function)(void **arguments);

/** Calls Halide's code with these arguments, in order: the hooks as user_context; the first operand; tiles [capacity,
 * 2]; bits; num_interior; num_tiles; threads; store_tiles; the packed operands; on a GPU tile_count; the other
 * operands. Every PolyKernel holds its own copy of this function and of Halide's runtime. */
int distile_call_halide(distile_halide_function function, const distile_kernel_call *call);
/** Calls code whose output and residual have the groups of channels in a last dimension of their own. */
int distile_call_halide_groups(distile_halide_function function, int32_t groups, const distile_kernel_call *call);

/** How Halide's code for an operator with a key or a value is called. */
typedef struct distile_row_blocks {
    int32_t heads;
    int32_t rows;      /**< The most rows of a block. */
    int32_t row_step;  /**< The time of a block is that of its rows rounded up to a multiple of this. */
    int32_t causal;    /**< 1: no row of a block sees the keys behind those that its last row sees. */
    int32_t more_rows; /**< What a block costs besides its rows, in rows. */
    int32_t keys;      /**< The most keys whose scores the code holds at once; 0: all. */
} distile_row_blocks;

/** Calls Halide's code for such an operator on a CPU, in parallel: once for every head and every block of listed rows
 * of an image. Its arguments, in order: the hooks as user_context; the input; the x of each row of the block; the x of
 * each active key of the image; the numbers of both; the last key that row 0 sees if the operator is causal; the scale;
 * the other operands. Tokens have the dimensions (channel of the head, x), scores (x of the key, x). */
int distile_call_row_blocks(distile_halide_function function, const distile_row_blocks *blocks,
                            const distile_kernel_call *call);

/** How Halide's code for an operator with a key or a value is called on a GPU: the rows and keys of one head that a
 * block takes at a time. */
typedef struct distile_token_lists {
    int32_t block_rows, block_keys;
} distile_token_lists;

/** Calls Halide's code for an operator with a key or a value on a GPU, once for all heads and images. Its arguments, in
 * order: the hooks as user_context; the input; the lists of rows and of keys; the blocks that they fill at most in an
 * image; the last key that row 0 sees if the operator is causal; the scale; where each image's rows and keys begin in
 * the lists; the number of rows; the number of keys where none is listed, else 0; the other operands. They have four
 * dimensions. */
int distile_call_token_lists(distile_halide_function function, const distile_token_lists *lists,
                             const distile_kernel_call *call);

/** A variant for tensor cores: embedded code and how to launch it. Several variants may share a kernel, which then runs
 * one of them, and with it the threads and the shared memory. */
typedef struct distile_tensor_core_code {
    const char *code, *end; /**< A cubin or PTX, followed by a 0 byte. */
    const char *kernel;
    int32_t place;                        /**< Among the kernel's variants. */
    int32_t block_pixels, block_channels; /**< Output pixels and channels that a block computes at a time. */
    int32_t channel_blocks;               /**< Blocks of output channels. */
    int32_t splits;                       /**< Blocks that share a reduction, as a cluster. */
    int32_t balanced;                     /**< 1: blocks share the reductions of the last items. */
    int32_t threads;                      /**< Threads of a block. */
    int32_t blocks_per_multiprocessor, shared_bytes;
    int32_t tile_h, tile_w;         /**< Granularity in output pixels. */
    int32_t box_step_h, box_step_w; /**< The strides of an operator whose tiles are copied in boxes; else 0. */
    int32_t early;                  /**< As in distile_gpu_launch. */
} distile_tensor_core_code;

/** Launches the kernel over the tiles of the call, or without a list over its mask. The operands are the input, the
 * weights, the bias, of quantized operators a distile_requantization, the residual if there is one, and the output.
 * Every PolyKernel with such code holds its own copy of this function. */
int distile_call_tensor_core(const distile_tensor_core_code *code, const distile_kernel_call *call);

/** Launches the kernels of several variants, of which the GPU chooses one. `codes` are those of all variants. */
int distile_choose_tensor_core(const distile_tensor_core_code *codes, const distile_kernel_call *calls,
                               const int32_t *variants, int32_t num_calls, const struct distile_gpu_choice *choice);

/** A variant of attention or of one of its products for tensor cores: embedded code and how to launch it. */
typedef struct distile_attention_code {
    const char *code, *end; /**< A cubin or PTX, followed by a 0 byte. */
    const char *kernel;
    int32_t heads;
    int32_t block_rows; /**< Rows that a block computes at a time. */
    int32_t threads;    /**< Threads of a block. */
    int32_t blocks_per_multiprocessor, shared_bytes;
    int32_t part_bytes; /**< The sums that a block shares with another; 0: none. */
    int32_t early;      /**< As in distile_gpu_launch. */
    int32_t product;    /**< distile_product; 0: attention. */
} distile_attention_code;

/** Launches the kernel over the rows of the call. The operands are the query, the key, the value and the output; of
 * scores the query, the key and the output, and of values the probabilities, the value and the output. Every PolyKernel
 * with code for tensor cores holds its own copy of this function. */
int distile_call_attention(const distile_attention_code *code, const distile_kernel_call *call);

/** The taps of one phase along an axis: with `scale` phases, output pixel scale * i + p of phase p reads the input
 * pixels stride * i + first + t * step, 0 <= t < taps. */
typedef struct distile_taps {
    int32_t first, step, taps;
} distile_taps;

/** A variant for dot-product or matrix instructions of CPUs, or for dot products on NVIDIA GPUs. */
typedef struct distile_dot_product_code {
    distile_activation epilogue;
    int32_t tile_h, tile_w;               /**< Granularity in output pixels. */
    int32_t block_pixels, block_channels; /**< Output pixels and channels whose sums are held in registers. */
    int32_t staged_blocks;                /**< Blocks of pixels that a task stages at a time. */
    int32_t channel_splits;               /**< Parts into which the output channels are split for the threads. */
    int32_t scale_h, scale_w;             /**< Phases along each axis; 1 for convolutions and linear layers. */
    int32_t stride_h, stride_w;
    /** Sections of the output channels begin with a block of 16 in the weights. */
    int32_t read_channels;    /**< Input channels that a section reads; 0: each output channel reads its own. */
    int32_t section_channels; /**< Output channels of a section. */
    /** Groups of a section that vectors keep apart: each of their lanes multiplies what its group reads alone. 1: all
     * that the section reads. */
    int32_t apart_groups;
    const distile_taps *rows, *columns; /**< The taps of each phase. */
} distile_dot_product_code;

/** Computes the tiles of the call. The operands are the input, the weights in the layout "cpu-k32", the bias, the
 * residual if there is one, and the output, and all but the bias are bfloat16, or where the name ends in fp16, float16.
 * Every PolyKernel with such code holds its own copy of the functions that it calls. */
int distile_call_avx512_bf16(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_amx_bf16(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_amx_fp16(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_amx_split_fp16(const distile_dot_product_code *code, const distile_kernel_call *call);

/** Bytes that hold the zero point, which code for GPUs copies in place of what lies beyond the input. Many copies of
 * one cache line would wait for each other. */
#define DISTILE_ZERO_POINT_BYTES 4096

/** How sums of quantized products become results. Behind it, for each phase and then each output channel, come int32_t
 * offsets, and then for each output channel float32 multipliers; the channels fill blocks of 16. On GPUs, the zero
 * point of the input follows in each of DISTILE_ZERO_POINT_BYTES bytes. With the sum over the inputs x (on CPUs as
 * unsigned numbers: those of int8 plus 128) and the weights w:
 *
 *     value = float32(sum of x * w + offset) * multiplier + bias [+ (residual - zero point) * residual_factor]
 *     output = round(epilogue(value) * output_factor) + output_zero_point
 *
 * Integers wrap around. Numbers are rounded to nearest even, and outputs saturate. An output of float32 is
 * epilogue(value), and its residual is added as it is. */
typedef struct distile_requantization {
    int32_t input_zero_point, residual_zero_point, output_zero_point;
    float residual_factor, output_factor;
    int32_t reserved[11];
} distile_requantization;

/** Compute as the functions above do, for inputs of DISTILE_UINT8 or DISTILE_INT8, weights of DISTILE_INT8 or
 * DISTILE_INT4 in the layout "cpu-k64", and an output and a residual of one of the input's types or of DISTILE_FLOAT32.
 * All give the same bits. 64 bytes hold 128 weights of 4 bits: the low halves the first 64. There is no depthwise
 * convolution by AMX. */
int distile_call_avx512_vnni(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_amx_int8(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_avx_vnni(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_avx2_int8(const distile_dot_product_code *code, const distile_kernel_call *call);
int distile_call_portable_int8(const distile_dot_product_code *code, const distile_kernel_call *call);

/** Computes as these functions do, on an NVIDIA GPU of compute capability 7.5 or later, with weights of DISTILE_INT8 in
 * the layout "cuda-k64". A block of threads computes block_pixels x block_channels, 32 or 128 x 16 or 64. */
int distile_call_dp4a(const distile_dot_product_code *code, const distile_kernel_call *call);

/* ---- The descriptor ----------------------------------------------------------------------- */

typedef struct distile_variant {
    const char *name;
    int32_t tile_h, tile_w; /**< Granularity in output pixels. */
    int32_t dense;          /**< 1: computes every tile of the image, whatever the mask. */
    const char *layout;     /**< The weight layout that the code reads, for instance "cpu-o16". */
    distile_kernel_function run;
    /** The type in which the code reads the input; 0: the operand's own, in place. With a type, the runtime may copy
     * the pixels that a call reads: to convert them (on a CPU, to float32), or to put a border around them. */
    distile_dtype input_dtype;
    /** On a GPU, if the tiles are single pixels: the most pixels of a mask that needs no list, because the code finds
     * the active ones in the bits. The code must take a list all the same. 0: the code always needs a list. */
    int32_t listless_pixels;
    /** Where the GPU chooses, it launches what it may choose. Variants with the same number share a launch, in the
     * PolyKernel's run_chosen. 0: the variant has its own. */
    int32_t launch;
} distile_variant;

/** One point of a time table: a variant takes `microseconds` for `tiles` tiles. */
typedef struct distile_time_point {
    int32_t variant;
    int32_t threads; /**< On a GPU, multiprocessors. */
    int64_t tiles;
    double microseconds;
} distile_time_point;

struct distile_polykernel {
    uint32_t version; /**< DISTILE_POLYKERNEL_VERSION. */
    const char *name;
    distile_operator_kind kind;
    const void *op; /**< The kind's struct. */
    int32_t num_operands;
    const distile_operand *operands; /**< Input first, output last. */
    distile_device device;
    /** What the code requires of the device: CPU features separated by spaces, for instance "avx2 fma f16c", or on CUDA
     * the minimum architecture, for instance "sm_75", or exactly one, for instance "sm_90a"; on OpenCL
     * the least version and extensions, for instance "opencl_1.2 cl_khr_fp16". */
    const char *features;
    distile_math math;  /**< How the code multiplies float32; 0: DISTILE_MATH_FLOAT32. */
    uint64_t plan_hash; /**< Hash of the operator and all variants' code. Time tables with another hash are refused. */
    int32_t num_variants;
    const distile_variant *variants;
    /** On a GPU, runs the variant that the GPU chooses. Null: the runtime lets it choose the lengths of the variants'
     * lists instead, which takes a launch more and one for each variant. */
    distile_choice_function run_chosen;
    int64_t num_times;               /**< Points in the built-in time table; 0 if the plan was never profiled. */
    const distile_time_point *times; /**< Ordered by variant, threads and tiles. */
    /** The fallback: the same operator for devices that lack some of the features and contexts that do not allow the
     * math; null if there is none. */
    const distile_polykernel *otherwise;
};

#ifdef __cplusplus
}
#endif

#endif
