/** \file
 * Masks from masks: what networks need between operators. All functions are exact and work on bits, 64 pixels at once.
 *
 * Each writes its result into a mask object, which takes the result's shape, as distile_mask_set_bytes does; the
 * result may be one of the operands. All masks of a call belong to one context. Errors of all functions: NULL_POINTER,
 * BAD_MASK (a mask that was never set or belongs to another context), BAD_SHAPE, BAD_VALUE, OUT_OF_MEMORY; the result
 * then stays as it was.
 *
 * On a GPU nothing waits, and calls can be captured in a graph once their shapes were met. Masks have fewer than 2^31
 * pixels there. Where the GPU fails, the result holds nothing. Further errors on a GPU: see distile.h.
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
    /** A transposed convolution: the reverse, the output pixels that input pixel (y, x) reaches by the same formula. */
    DISTILE_WINDOW_TRANSPOSED = 1,
    /** Nearest upsampling by stride_h x stride_w, and then a convolution or pooling with stride 1: output pixel (y, x)
     * reads the pixels (y - pad_top + i * dilation_h, x - pad_left + j * dilation_w) of the enlarged input, which has
     * at most 131070 rows and columns. */
    DISTILE_WINDOW_UPSAMPLED = 2
} distile_window_kind;

/** The window of an operator. Padding below and to the right follows from the sizes of input and output.
 * Kernel, stride and dilation go from 1 to 65535, padding from 0 to 65535. */
typedef struct distile_window {
    int32_t kernel_h, kernel_w;
    int32_t stride_h, stride_w;
    int32_t dilation_h, dilation_w;
    int32_t pad_top, pad_left;
    distile_window_kind kind;
} distile_window;

/** The window of a kernel's operator; all 0 if `kernel` is null. */
DISTILE_API distile_window distile_kernel_window(const distile_kernel *kernel);

/** The input pixels, of images of in_height x in_width, that an operator's active output pixels read. */
DISTILE_API distile_status distile_mask_needed_input(distile_mask *result, distile_mask *output,
                                                     const distile_window *window, int32_t in_height, int32_t in_width);

/** The output pixels, of images of out_height x out_width, that read at least one active input pixel. A window of kind
 * DISTILE_WINDOW_UPSAMPLED with a kernel of 1 and no padding repeats every pixel: nearest upsampling of the mask. */
DISTILE_API distile_status distile_mask_affected_output(distile_mask *result, distile_mask *input,
                                                        const distile_window *window, int32_t out_height,
                                                        int32_t out_width);

/** Every pixel with an active one at most radius_h rows and radius_w columns away. Radii from 0 to 32767. */
DISTILE_API distile_status distile_mask_dilate(distile_mask *result, distile_mask *mask, int32_t radius_h,
                                               int32_t radius_w);

/** The mask at a lower resolution: a pixel for every factor_h x factor_w pixels, active if any of them is. The last row
 * and column may cover fewer. Factors from 1 to 65535. */
DISTILE_API distile_status distile_mask_pool(distile_mask *result, distile_mask *mask, int32_t factor_h,
                                             int32_t factor_w);

// Two masks of one shape.
/** a or b */
DISTILE_API distile_status distile_mask_unite(distile_mask *result, distile_mask *a, distile_mask *b);
/** a and b */
DISTILE_API distile_status distile_mask_intersect(distile_mask *result, distile_mask *a, distile_mask *b);
/** a and not b */
DISTILE_API distile_status distile_mask_subtract(distile_mask *result, distile_mask *a, distile_mask *b);
/** not a */
DISTILE_API distile_status distile_mask_invert(distile_mask *result, distile_mask *a);

/** The pixels at which two tensors of one shape and type differ by more than `threshold` in at least one channel, or at
 * which the difference is not a number, because one of the two is none or both are the same infinity: an edit mask. The
 * threshold is at least 0. On a GPU, rows that begin at multiples of 16 bytes are read fastest, and the tensors must
 * stay as they are until the stream has come to them. Further errors: BAD_TYPE, BAD_STRIDE, BAD_ALIGNMENT,
 * BAD_CHANNELS. */
DISTILE_API distile_status distile_mask_set_difference(distile_mask *result, const distile_tensor *a,
                                                       const distile_tensor *b, float threshold);

#ifdef __cplusplus
}
#endif

#endif
