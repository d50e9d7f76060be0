/** \file
 * One run of a kernel: its arguments checked, and a variant called so that exactly the pixels that are due change.
 */
#ifndef DISTILE_RUN_H
#define DISTILE_RUN_H

#include "kernel.h"
#include "weights.h"

namespace distile {

/** Checks every argument of the API function `call`. Writes nothing but the context's message. */
distile_status check_run(const distile_kernel &kernel, const char *call, const distile_run_args &args);

/** Runs the variant of a choice, on arguments that were checked. */
distile_status run_variant(distile_kernel &kernel, const char *call, const distile_run_args &args,
                           const distile_choice &choice);

}  // namespace distile

#endif
