/** \file
 * PolyKernels that nobody compiled: code of this library computes masked convolutions and linear layers of any shape on
 * a CPU. It reads the pixels of the mask from a list, so it has one variant, and no dense one.
 */
#ifndef DISTILE_GENERAL_H
#define DISTILE_GENERAL_H

#include "polykernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Makes the PolyKernel of an operator. `kind` is DISTILE_MASKED_CONV2D, and `op` a distile_conv2d with any groups;
 * or DISTILE_MASKED_LINEAR, and a distile_linear. `types` is that of the input, the residual and the output:
 * DISTILE_FLOAT32; `weights` that of the packed weights: DISTILE_FLOAT32, or DISTILE_BFLOAT16, which is read in half of
 * the bytes and multiplied as float32. The context gets messages only, so the PolyKernel may outlive it; it must
 * outlive its kernels. Errors: NULL_POINTER, BAD_VALUE (also a kind, or a number that is not one of such an operator),
 * BAD_TYPE, BAD_CHANNELS (groups do not divide them), OTHER_DEVICE (the context is not a CPU's), OUT_OF_MEMORY. */
DISTILE_API distile_status distile_general_polykernel_create(distile_context *context, distile_operator_kind kind,
                                                             const void *op, distile_dtype types, distile_dtype weights,
                                                             const distile_polykernel **polykernel);
/** Frees what distile_general_polykernel_create made. Null is allowed. */
DISTILE_API void distile_general_polykernel_destroy(const distile_polykernel *polykernel);

#ifdef __cplusplus
}
#endif

#endif
