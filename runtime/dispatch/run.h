/** \file
 * One run of a kernel: checks the arguments and calls a variant so that only the requested pixels change.
 */
#ifndef DISTILE_RUN_H
#define DISTILE_RUN_H

#include "runtime/dispatch/kernel.h"
#include "runtime/dispatch/weights.h"

namespace distile {

/** Checks every argument of the API function `call`. Writes only the context's message. */
distile_status check_run(const distile_kernel &kernel, const char *call, const distile_run_args &args);

/** Checks that the variant which a call names may run with its key mask, without waiting. */
distile_status check_named(const distile_kernel &kernel, const char *call, const distile_run_args &args,
                           int32_t variant);

/** Runs the chosen variant on checked arguments. */
distile_status run_variant(distile_kernel &kernel, const char *call, const distile_run_args &args,
                           const distile_choice &choice);

}  // namespace distile

#endif
