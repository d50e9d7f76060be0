/** \file
 * Calls the code of a kernel's variants with dummy addresses, so that a device can load it before the first run.
 */
#ifndef DISTILE_REHEARSAL_H
#define DISTILE_REHEARSAL_H

#include "kernels/call.h"
#include "runtime/base/device.h"
#include "runtime/dispatch/kernel.h"
#include <functional>

namespace distile {

/** An address for a rehearsal. Never read, but null would mean that an allocation failed. */
constexpr uint64_t nowhere = 256;

/** Passes a call of every variant to `rehearse`, which makes it without launching anything. Throws Failure for the
 * first that fails. */
void rehearse(const distile_kernel &kernel,
              const std::function<RunResult(const distile_variant &, distile_kernel_call &)> &rehearse);

}  // namespace distile

#endif
