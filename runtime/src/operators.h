/** \file
 * How the runtime checks and calls each kind of operator: one pair of functions and one file a kind.
 */
#ifndef DISTILE_OPERATORS_H
#define DISTILE_OPERATORS_H

#include "kernel.h"

namespace distile {

/** What of a call is not peculiar to where it runs. */
struct Conv2dTensors {
    const distile_tensor *input, *residual, *output;
    int32_t inactive, store; /**< As numbers, because a caller's may be no enumerator. */
};

/** Checks the tensors and options of a masked convolution for the API function `call`. */
distile_status check_conv2d_tensors(const distile_kernel &kernel, const char *call, const Conv2dTensors &args);
/** Checks every argument of distile_run for a masked convolution. Writes nothing but the context's message. */
distile_status check_conv2d(const distile_kernel &kernel, const distile_run_args &args);
/** Runs the variant of an index on arguments that were checked. */
distile_status run_conv2d(distile_kernel &kernel, const distile_run_args &args, int32_t index);

}  // namespace distile

#endif
