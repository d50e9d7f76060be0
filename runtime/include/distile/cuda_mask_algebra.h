/** \file
 * Masks from masks on an NVIDIA GPU: the functions of mask_algebra.h on masks of the device, with the same results,
 * windows and errors.
 *
 * Nothing waits: a call puts one kernel on the stream, a copy before it where the result of a window is its operand,
 * and what lists the tiles that were asked of the result before. Memory is taken when a shape is first met. After that,
 * calls can be captured in a graph.
 *
 * The result may be one of the operands. All masks of a call are of one distile_cuda, and have fewer than 2^31 pixels.
 * Further errors: those of cuda.h. A wrong argument leaves the result as it was; where the GPU fails, it holds nothing.
 */
#ifndef DISTILE_CUDA_MASK_ALGEBRA_H
#define DISTILE_CUDA_MASK_ALGEBRA_H

#include <distile/cuda.h>
#include <distile/mask_algebra.h>

#ifdef __cplusplus
extern "C" {
#endif

/** As distile_mask_needed_input. The window of a kernel is distile_kernel_window(distile_cuda_kernel_variants(kernel)).
 */
DISTILE_API distile_status distile_cuda_mask_needed_input(distile_cuda_mask *result, distile_cuda_mask *output,
                                                          const distile_window *window, int32_t in_height,
                                                          int32_t in_width);
/** As distile_mask_affected_output. */
DISTILE_API distile_status distile_cuda_mask_affected_output(distile_cuda_mask *result, distile_cuda_mask *input,
                                                             const distile_window *window, int32_t out_height,
                                                             int32_t out_width);
/** As distile_mask_dilate. */
DISTILE_API distile_status distile_cuda_mask_dilate(distile_cuda_mask *result, distile_cuda_mask *mask,
                                                    int32_t radius_h, int32_t radius_w);
/** As distile_mask_pool. */
DISTILE_API distile_status distile_cuda_mask_pool(distile_cuda_mask *result, distile_cuda_mask *mask, int32_t factor_h,
                                                  int32_t factor_w);

/** a or b */
DISTILE_API distile_status distile_cuda_mask_unite(distile_cuda_mask *result, distile_cuda_mask *a,
                                                   distile_cuda_mask *b);
/** a and b */
DISTILE_API distile_status distile_cuda_mask_intersect(distile_cuda_mask *result, distile_cuda_mask *a,
                                                       distile_cuda_mask *b);
/** a and not b */
DISTILE_API distile_status distile_cuda_mask_subtract(distile_cuda_mask *result, distile_cuda_mask *a,
                                                      distile_cuda_mask *b);
/** not a */
DISTILE_API distile_status distile_cuda_mask_invert(distile_cuda_mask *result, distile_cuda_mask *a);

/** As distile_mask_set_difference, of tensors on the device, which must stay as they are until the stream has come to
 * what was put on it here. Rows that begin at multiples of 16 bytes are read fastest. */
DISTILE_API distile_status distile_cuda_mask_set_difference(distile_cuda_mask *result, const distile_tensor *a,
                                                            const distile_tensor *b, float threshold);

#ifdef __cplusplus
}
#endif

#endif
