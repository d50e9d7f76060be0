/** \file
 * Masks from masks, for use between operators. All functions are exact and work on bits, 64 pixels at once.
 *
 * Each sets the result mask, shape included, as distile_mask_set_bytes does; the result may be one of the operands. All
 * masks of a call must belong to one context. Errors of all functions: NULL_POINTER, BAD_MASK (a mask was never set or
 * belongs to another context), BAD_SHAPE, BAD_VALUE, OUT_OF_MEMORY. An error leaves the result unchanged.
 *
 * On a GPU nothing waits, and a graph can capture a call once it has run with the same shapes. Masks have fewer than
 * 2^31 pixels there. If the GPU fails, the result holds no data. See distile.h for further errors on a GPU.
 */
#ifndef DISTILE_MASK_ALGEBRA_H
#define DISTILE_MASK_ALGEBRA_H

#include "distile.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How a window relates the pixels of an output to those of an input. */
typedef enum distile_window_kind {
    /** A convolution or pooling: output pixel (y, x) reads the input pixels (y * stride_h - pad_top + i * dilation_h,
     * x * stride_w - pad_left + j * dilation_w), 0 <= i < kernel_h, 0 <= j < kernel_w, where they exist. */
    DISTILE_WINDOW_CONV = 0,
    /** A transposed convolution, the reverse: input pixel (y, x) contributes to the output pixels that the same formula
     * gives. */
    DISTILE_WINDOW_TRANSPOSED = 1,
    /** Nearest upsampling by stride_h x stride_w, then a convolution or pooling with stride 1: output pixel (y, x)
     * reads the pixels (y - pad_top + i * dilation_h, x - pad_left + j * dilation_w) of the upsampled input, which has
     * at most 131070 rows and columns. */
    DISTILE_WINDOW_UPSAMPLED = 2
} distile_window_kind;

/** The window of an operator. The sizes of input and output imply the padding at the bottom and right. Kernel, stride
 * and dilation range from 1 to 65535, padding from 0 to 65535. */
typedef struct distile_window {
    int32_t kernel_h, kernel_w;
    int32_t stride_h, stride_w;
    int32_t dilation_h, dilation_w;
    int32_t pad_top, pad_left;
    distile_window_kind kind;
} distile_window;

/** The window of a kernel's operator; all 0 if `kernel` is null. */
DISTILE_API distile_window distile_kernel_window(const distile_kernel *kernel);

/** The input pixels that the active output pixels read, in images of in_height x in_width. */
DISTILE_API distile_status distile_mask_needed_input(distile_mask *result, distile_mask *output,
                                                     const distile_window *window, int32_t in_height, int32_t in_width);

/** The output pixels that read an active input pixel, in images of out_height x out_width. A window of kind
 * DISTILE_WINDOW_UPSAMPLED with a 1x1 kernel and no padding repeats every pixel: nearest upsampling of the mask. */
DISTILE_API distile_status distile_mask_affected_output(distile_mask *result, distile_mask *input,
                                                        const distile_window *window, int32_t out_height,
                                                        int32_t out_width);

/** Every pixel with an active pixel at most radius_h rows and radius_w columns away. Radii range from 0 to 32767. */
DISTILE_API distile_status distile_mask_dilate(distile_mask *result, distile_mask *mask, int32_t radius_h,
                                               int32_t radius_w);

/** The mask at a lower resolution: one pixel per block of factor_h x factor_w pixels, active if any of them is. Blocks
 * in the last row and column may be smaller. Factors range from 1 to 65535. */
DISTILE_API distile_status distile_mask_pool(distile_mask *result, distile_mask *mask, int32_t factor_h,
                                             int32_t factor_w);

// The operands have the same shape.
/** a or b */
DISTILE_API distile_status distile_mask_unite(distile_mask *result, distile_mask *a, distile_mask *b);
/** a and b */
DISTILE_API distile_status distile_mask_intersect(distile_mask *result, distile_mask *a, distile_mask *b);
/** a and not b */
DISTILE_API distile_status distile_mask_subtract(distile_mask *result, distile_mask *a, distile_mask *b);
/** not a */
DISTILE_API distile_status distile_mask_invert(distile_mask *result, distile_mask *a);

/** An edit mask: the pixels at which two tensors of the same shape and type differ by more than `threshold` in at least
 * one channel, or at which the difference is NaN (one value is NaN, or both are the same infinity). The threshold is at
 * least 0. On a GPU, rows aligned to 16 bytes are fastest, and the tensors must stay unchanged until the stream has
 * read them. Further errors: BAD_TYPE, BAD_STRIDE, BAD_ALIGNMENT, BAD_CHANNELS. */
DISTILE_API distile_status distile_mask_set_difference(distile_mask *result, const distile_tensor *a,
                                                       const distile_tensor *b, float threshold);

#ifdef __cplusplus
}
#endif

#endif
