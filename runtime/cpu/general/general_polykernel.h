/** \file
 * Runs what distile_general_polykernel_create makes.
 */
#ifndef DISTILE_CPU_GENERAL_POLYKERNEL_H
#define DISTILE_CPU_GENERAL_POLYKERNEL_H

#include "kernels/call.h"
#include "runtime/cpu/cpu_device.h"

namespace distile {

/** Whether the code of a PolyKernel's variants is this library's own. */
inline bool is_general(const distile_polykernel &polykernel) {
    return polykernel.num_variants == 1 && !polykernel.variants[0].run;
}

void run_general(CpuDevice &device, const distile_polykernel &polykernel, const distile_kernel_call &call);

}  // namespace distile

#endif
