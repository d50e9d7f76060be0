/** \file
 * Stages: many masked steps in one call. On a GPU a small layer costs a launch, lists and tails that take longer than
 * its products; a stage pays them once. Masks from scores and the pixels that later steps need are found inside.
 *
 * On NVIDIA GPUs of compute capability 8.0 and later, tensors are of float16 or bfloat16, and their channels are
 * multiples of 8; or they are of float32, with multiples of 4. Convolutions have one group, or are depthwise. Factors
 * of float32 are rounded to TF32, which the context must allow, for steps of attention as for operators of attention.
 * On CPUs tensors are of float32, with any channels and groups. A convolution's products are summed in float32 and
 * rounded once; teams (distile_stage_args) round parts of sums, too.
 *
 * Tensors may also be quantized (quantize.h), all of DISTILE_UINT8 or all of DISTILE_INT8; on a GPU their channels are
 * multiples of 16. Convolutions compute what quantized operators do, to the bit, and may have an output and a residual
 * of float32. Other steps are scores alone.
 */
#ifndef DISTILE_STAGE_H
#define DISTILE_STAGE_H

#include "mask_algebra.h"
#include "quantize.h"
#include "tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The most words of 32 pixels, batch * height * ceil(width / 32), that a mask of a stage on a GPU may have. */
#define DISTILE_STAGE_WORDS 32768

typedef enum distile_step_kind {
    DISTILE_STEP_CONV2D = 0, /**< output = activation(convolution + bias + residual) at some pixels. */
    /** A mask, as distile_mask_set_scores. Where the image is quantized, its stored numbers are multiplied: for scores
     * of real numbers, multiply the weights by the scale, and subtract the zero point times their sum from score_bias.
     */
    DISTILE_STEP_SCORES = 1,
    /* Steps that take each channel by itself: output = activation(value + residual), rounded once. */
    /** The largest number of a window's pixels in the image, of which each window has one. A GPU reads those outside,
     * too: there the border holds minus infinity, or 0 if no pixel of the image is less. */
    DISTILE_STEP_MAX_POOL = 2,
    DISTILE_STEP_AVERAGE_POOL = 3, /**< The mean of a window's pixels, of which those outside the image are 0. */
    DISTILE_STEP_UPSAMPLE = 4,     /**< The nearest pixel: the window's strides are factors, and its kernel 1 x 1. */
    DISTILE_STEP_SUM = 5,          /**< The pixel itself, to which the residual is added; without one, a copy. */
    /** output = norm * weights + bias, as distile_normalize: each pixel's channels are normalized. Weights and bias are
     * float32 numbers for each channel, on the device; null: 1 and 0. The window is 1 x 1. A GPU takes up to
     * DISTILE_STAGE_NORMALIZED channels. */
    DISTILE_STEP_NORMALIZE = 6,
    /** The pixels of the mask attend, in each head of the channels by itself, to those of their image: output = softmax
     * of scale * (input, key) over the pixels of `key`, times `value`. On a GPU heads have up to 128 channels, or 64 of
     * float32, a multiple of 8, and masks up to DISTILE_STAGE_ATTENTION_WORDS words. The window is 1 x 1. */
    DISTILE_STEP_ATTENTION = 7,
    /** A mask of pixels that go on, of those in `from`. A pixel's score is the sigmoid of its channels times weights
     * plus score_bias; it is added to `totals`, and the pixel goes on while its total is below the threshold. With an
     * output, output += part * input, in the first columns, as many as the output has: the part is the score, or where
     * a pixel does not go on, what its total was below 1 before. Pixels that `from` has not keep totals and outputs. */
    DISTILE_STEP_HALT = 8
} distile_step_kind;

/** The most words of 32 pixels, in rows, of a mask of attention on a GPU. */
#define DISTILE_STAGE_ATTENTION_WORDS 752
/** The most channels that a stage on a GPU normalizes. */
#define DISTILE_STAGE_NORMALIZED 2048

/** A step of a stage. Zero-initialise, then set. Steps act as if each ran after the one before. */
typedef struct distile_stage_step {
    distile_step_kind kind;
    /** On a GPU aligned to 16 bytes, as its strides are, and with a border as wide as windows reach outside the image.
     * On a CPU, 0 is read where they reach outside the tensor and its border. A quantized image's border holds its zero
     * point, which also counts as 0. */
    const distile_tensor *input;
    /** Has the input's type; after a convolution of a quantized image maybe float32, which no step has as its input.
     * Other pixels keep their values. Null for scores, maybe for halts. */
    const distile_tensor *output;
    /** Has the output's shape and type, and may be the same view as the output. Null: none. */
    const distile_tensor *residual;
    /** The pixels of the output that a step computes; null: every pixel. Scores set it: one pixel for each stride of
     * the window. Halts set it: all pixels of the input. */
    distile_mask *mask;
    /** Null, or the window of a later convolution whose pixels are the mask's: this convolution computes the pixels
     * that it reads. */
    const distile_window *reader;
    /** Has the output's shape: pixels whose sums stay without activation, because a later step adds to them. Null:
     * none. Null for quantized images: nothing is added to a rounded result.
     */
    distile_mask *later;
    distile_window window; /**< Its kind is DISTILE_WINDOW_CONV. Scores use its strides. */
    /** What distile_pack_stage_weights wrote for this device, in its memory, or for quantized images
     * distile_pack_quantized_stage_weights; for scores, halts and norms, a float32 number for each channel. On a GPU
     * aligned to 128 bytes, or 16 for the latter; quantized ones on a CPU to 64. Null for attention and steps that take
     * each channel by itself, which also have no bias, reader or later pixels. */
    const void *weights;
    /** The type of packed weights; 0: the input's. On a CPU it may also be bfloat16 or int8: weights are then read in a
     * half or a quarter of the bytes, and multiplied as float32. */
    distile_dtype weights_dtype;
    /** A number for each output channel, on the device; null: 0. Null for scores and halts, and for quantized images,
     * whose packed weights have it. */
    const float *bias;
    distile_activation activation; /**< For quantized images, that which weights were packed for. */
    const float *slope;            /**< The activation's number, in host memory; null: .01. */
    float score_bias, threshold;   /**< Scores with this bias are active above the threshold. */
    /** 1: other pixels of a convolution's or norm's output may be written, too, as where only later steps read it. A
     * device need then not wait for the mask where it computes all pixels as fast. Not with a residual or `later`. */
    int32_t spreads;
    /** The groups of neighbouring channels of a convolution: an output channel reads the input channels of its own
     * group. As many as input and output channels: depthwise. 0: 1. */
    int32_t groups;
    /** 1: only the next step reads the output, a convolution with the same mask and no reader: of 1 x 1 without
     * strides; or if this step has a reader, of that window; or if neither has a mask, of any. What the output holds
     * afterwards is not said: a device need not store it. */
    int32_t transient;
    /* A norm has these. */
    distile_norm norm;
    float epsilon; /**< At least 0. */
    /* Attention has these. */
    const distile_tensor *key, *value; /**< With the input's shape and type, and the strides of each other. */
    int32_t heads;                     /**< Divide the channels. */
    float scale;                       /**< Above 0. */
    int32_t all_keys;                  /**< 1: all pixels of an image are keys; 0: those of the mask. */
    int32_t reserved32;                /**< 0 */
    /* A halt has these. */
    /** The pixels that may go on, of the made mask's shape; null: every pixel. Not the mask that is made. */
    distile_mask *from;
    float *totals;       /**< float32 [N, height, width] on the device. */
    const float *limits; /**< float32 [height, width] on the device, which scores are at most; null: none. */
    int64_t reserved[3]; /**< 0 */
} distile_stage_step;

/** Zero-initialise, then set. */
typedef struct distile_stage_args {
    const distile_stage_step *steps;
    int32_t num_steps;
    /** Which tiles of rows x columns blocks of a GPU may use, a bit each: 16 x 32, 32 x 32, 32 x 64, 64 x 64, 128 x 64,
     * 128 x 128. More than 32 output channels are filled up to a multiple of 64; where a tile's columns do not divide
     * them, others are used. 0: all. */
    uint32_t tiles;
    /** Whether a team of blocks of a GPU computes residual blocks of a small image where it can (docs/cuda.md): 1: yes;
     * -1: no; 0: where that is faster for as many images if few pixels are active. */
    int32_t teams;
    int32_t reserved32;  /**< 0 */
    int64_t reserved[3]; /**< 0 */
} distile_stage_args;

/** Runs the steps. On a GPU, more than about 400 steps take another launch; nothing waits, and a graph can capture the
 * call once it has run outside a capture with the same shapes. All multiprocessors of the context take part, so work of
 * other streams runs before or after it. All arguments are checked before anything is written; only what a tensor holds
 * at pixels that no step has written is the caller's affair. Errors: NULL_POINTER, BAD_VALUE, BAD_SHAPE, BAD_STRIDE,
 * BAD_ALIGNMENT, BAD_TYPE, BAD_CHANNELS, BAD_MASK (also a mask of another context), ALIASING, UNSUPPORTED_DEVICE,
 * OUT_OF_MEMORY. See distile.h for further errors on a GPU. */
DISTILE_API distile_status distile_run_stage(distile_context *context, const distile_stage_args *args);

/** An item of a stage: what a block of a GPU computes at once of a step, or on a CPU a whole step. Its times are
 * nanoseconds from the stage's begin, as the device's clock has them: on an H200 it advances by 32. */
typedef struct distile_stage_item {
    int32_t step;        /**< The number of the step. */
    int32_t worker;      /**< The block of a GPU; 0 on a CPU. */
    int32_t prepares;    /**< 1: a block finds the pixels of the step's mask. 0: it computes. */
    uint32_t listed;     /**< Its pixels are known. */
    uint32_t open;       /**< What it reads is there. */
    uint32_t begun;      /**< Its first pixels and weights are there; 0 for what has no products. */
    uint32_t multiplied; /**< Its products are done; 0 for what has none. */
    uint32_t stored;     /**< Its result is stored. */
    uint32_t told;       /**< Others can know. */
} distile_stage_item;

/** Runs the steps as distile_run_stage does, waits for them, and writes when each item came to each point: the first
 * `capacity` items into `items`, which may be null for a capacity of 0, and the number of all into `count`. A trace
 * makes a stage a little slower. Errors: those of distile_run_stage, BAD_VALUE for a negative capacity, NULL_POINTER,
 * CAPTURING. */
DISTILE_API distile_status distile_trace_stage(distile_context *context, const distile_stage_args *args,
                                               distile_stage_item *items, int64_t capacity, int64_t *count);

/** The bytes of weights that distile_pack_stage_weights writes; 0 if the context's device has no stages with this type
 * or these channels and groups, if a number is not positive, or for a null context. */
DISTILE_API int64_t distile_stage_weights_bytes(const distile_context *context, distile_dtype dtype,
                                                int32_t out_channels, int32_t in_channels, int32_t kernel_h,
                                                int32_t kernel_w, int32_t groups);

/** Packs float32 weights [out_channels][in_channels / groups][kernel_h][kernel_w] for stages of the context's device,
 * both in host memory. In int8, an output channel's largest weight becomes 127 or -127, and the other weights are
 * rounded to what that makes of 1: by at most half of the largest weight's 127th. Errors: NULL_POINTER, BAD_CHANNELS
 * (also a kernel of no pixels, and groups that do not divide the channels), BAD_TYPE, UNSUPPORTED_DEVICE. */
DISTILE_API distile_status distile_pack_stage_weights(distile_context *context, distile_dtype dtype,
                                                      int32_t out_channels, int32_t in_channels, int32_t kernel_h,
                                                      int32_t kernel_w, int32_t groups, const float *weights,
                                                      void *packed);

/** What quantized weights of a stage are packed for: a convolution with these types and this activation.
 * Zero-initialise, then set. */
typedef struct distile_quantized_step {
    distile_filter_extents extents;
    int32_t groups;       /**< 0: 1. */
    distile_dtype input;  /**< DISTILE_UINT8 or DISTILE_INT8. */
    distile_dtype output; /**< The input's type, or DISTILE_FLOAT32. */
    distile_activation activation;
    int64_t reserved[4]; /**< 0 */
} distile_quantized_step;

/** The bytes that distile_pack_quantized_stage_weights writes; 0 if the context's device has no such stages, for null,
 * or if a number is not positive. */
DISTILE_API int64_t distile_quantized_stage_weights_bytes(const distile_context *context,
                                                          const distile_quantized_step *step);

/** Packs a filter of int8 or int4 and its quantization, both required, for stages of the context's device; all is in
 * host memory. The source's slope counts for nothing. A step that has a residual needs its scale here. Errors:
 * NULL_POINTER, BAD_VALUE, BAD_ALIGNMENT, BAD_TYPE, BAD_CHANNELS (also a kernel of no pixels), UNSUPPORTED_DEVICE,
 * OUT_OF_MEMORY. */
DISTILE_API distile_status distile_pack_quantized_stage_weights(distile_context *context,
                                                                const distile_quantized_step *step,
                                                                const distile_weights_source *source, void *packed);

#ifdef __cplusplus
}
#endif

#endif
