/** \file
 * Quantized tensors: bytes that stand for real numbers, real = (stored - zero_point) * scale, as in ONNX. Operators
 * that were built for DISTILE_UINT8 or DISTILE_INT8 compute what ONNX's QLinearConv does, on CPUs and on the tensor
 * cores of NVIDIA GPUs. The functions that read or write tensors are for CPUs only.
 */
#ifndef DISTILE_QUANTIZE_H
#define DISTILE_QUANTIZE_H

#include <distile/distile.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The scale and the zero point of a tensor. */
typedef struct distile_scale {
    float scale;        /**< Above 0, and finite. */
    int32_t zero_point; /**< In the range of the tensor's type. */
} distile_scale;

/** The numbers of a quantized operator, packed with its weights. Its sums are integers, bias included:
 *
 *     value = (sum of (input - zero point) * filter + bias) * input.scale * filter_scales[channel]
 *     output = round(epilogue(value + float bias + residual) / output.scale) + output.zero_point
 *
 * Values are rounded to nearest even and saturate. With the epilogue none or relu, one multiplication by input.scale *
 * filter_scale / output.scale makes a result from a sum, as in ONNX Runtime; others compute real values in between. An
 * operator with an output of float32 stores epilogue(...). Pixels outside the input count as real zeros. Sums that
 * exceed int32 wrap around. */
typedef struct distile_quantization {
    distile_scale input;
    const float *filter_scales; /**< One per output channel, each above 0 and finite. Filters have no zero point. */
    const int32_t *bias;    /**< One per output channel, in units of input.scale * filter_scale; null: 0. It adds to the
                               source's float bias, which is in real units. */
    distile_scale output;   /**< All 0 for an output of float32. */
    distile_scale residual; /**< All 0 without a residual and for one of float32. */
    int64_t reserved[4];    /**< 0 */
} distile_quantization;

/** The extents of a filter. With groups, the input channels are those of one. Linear layers have kernels of 1 x 1. */
typedef struct distile_filter_extents {
    int32_t out_channels, in_channels, kernel_h, kernel_w;
} distile_filter_extents;

/** Quantizes a filter with a scale for each output channel, the least one with which no weight saturates: DISTILE_INT8
 * from -127 to 127, DISTILE_INT4 from -8 to 7. Batch normalisation is folded in first. Stores the result in the order
 * DISTILE_OHWI in `filter`, a byte for each weight or for two, one scale per output channel in `scales` (1 for a
 * channel of zeros), and the folded bias in `bias`, which may be null if the source has neither bias nor batch
 * normalisation. All are in host memory. Errors: NULL_POINTER, BAD_VALUE (also a weight that is not finite), BAD_SHAPE
 * (an extent below 1, or more than 2^31 weights), BAD_ALIGNMENT, BAD_TYPE (the source is not of a floating-point type,
 * or `dtype` is neither of these two), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_quantize_filter(distile_context *context, const distile_weights_source *source,
                                                   const distile_filter_extents *extents, distile_dtype dtype,
                                                   void *filter, float *scales, float *bias);

/** How distile_calibrate() finds the range of values. */
typedef struct distile_calibration {
    /** The share of the values that the range shall hold, in percent, above 50 and up to 100: it leaves out the rest,
     * half of it at each end. 100: from the least to the largest value. */
    double percentile;
    int32_t symmetric;   /**< 1: the range is the same on both sides of 0. */
    int64_t reserved[4]; /**< 0 */
} distile_calibration;

/** Finds the scale and the zero point with which a type of 8 bits holds the values of some tensors of the same layer:
 * DISTILE_UINT8 from 0 to 255, DISTILE_INT8 from -128 to 127, or if symmetric from -127 to 127 with the zero point 0
 * (128 and 1 to 255 in DISTILE_UINT8). The range always includes 0. The tensors have any floating-point type; masks[i],
 * or the whole array `masks`, may be null: then every pixel of tensor i counts. Without any active pixel, or if all
 * values are 0, the scale is 1. Errors: NULL_POINTER, BAD_VALUE (also a value that is not finite), BAD_SHAPE,
 * BAD_STRIDE, BAD_ALIGNMENT, BAD_TYPE, BAD_CHANNELS, BAD_MASK, OTHER_DEVICE, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_calibrate(distile_context *context, const distile_tensor *tensors,
                                             distile_mask *const *masks, int32_t count, distile_dtype dtype,
                                             const distile_calibration *calibration, distile_scale *scale);

/** ONNX's QuantizeLinear of the active pixels: output = round(input / scale) + zero_point, rounded to nearest even and
 * saturated; NaN becomes the zero point. The input has any floating-point type, the output DISTILE_UINT8 or
 * DISTILE_INT8. Other pixels keep their values; a null mask means all pixels. The tensors must not overlap. Errors:
 * NULL_POINTER, BAD_VALUE, BAD_SHAPE, BAD_STRIDE, BAD_ALIGNMENT, BAD_TYPE, BAD_CHANNELS, BAD_MASK, ALIASING,
 * OTHER_DEVICE, OUT_OF_MEMORY. */
DISTILE_API distile_status distile_quantize(distile_context *context, const distile_tensor *input, distile_mask *mask,
                                            distile_scale scale, const distile_tensor *output);

/** The reverse, ONNX's DequantizeLinear: output = (input - zero_point) * scale, rounded to the output's type. Errors:
 * as distile_quantize. */
DISTILE_API distile_status distile_dequantize(distile_context *context, const distile_tensor *input, distile_mask *mask,
                                              distile_scale scale, const distile_tensor *output);

#ifdef __cplusplus
}
#endif

#endif
