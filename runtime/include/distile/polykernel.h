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
#define DISTILE_POLYKERNEL_VERSION 20

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

/* ---- The descriptor ----------------------------------------------------------------------- */

/** One call of a variant, and what a GPU chooses a variant by: known to the runtime and to code of the same version
 * only (kernels/call.h). */
struct distile_kernel_call;
struct distile_gpu_choice;

/** Returns 0 for success; any other value ends the call with an error. */
typedef int (*distile_kernel_function)(const struct distile_kernel_call *call);

/** Makes the one of these calls that the GPU chooses; variants[i] is the variant of calls[i]. The return value is that
 * of a distile_kernel_function. */
typedef int (*distile_choice_function)(const struct distile_kernel_call *calls, const int32_t *variants,
                                       int32_t num_calls, const struct distile_gpu_choice *choice);

/** The order in which the tiles of an image are listed. No result depends on it. */
typedef enum distile_tile_order {
    DISTILE_TILES_BY_ROWS = 0,
    DISTILE_TILES_ALONG_MORTON = 1, /**< A power of two of tiles from the begin of one is a square. */
    DISTILE_TILES_ALONG_HILBERT = 2 /**< Each tile of the image is beside the one before. */
} distile_tile_order;

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
    /** On a CPU, a distile_tile_order. PolyKernels that do not know it have it as 0. */
    int32_t order;
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
    /** The nonzero weights with which variants that skip zeros take their times, of quantized operators the
     * quads of four input channels with one; 0: no variant does. */
    int64_t nonzeros;
    /** The fallback: the same operator for devices that lack some of the features and contexts that do not allow the
     * math; null if there is none. */
    const distile_polykernel *fallback;
};

#ifdef __cplusplus
}
#endif

#endif
