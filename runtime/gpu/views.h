/** \file
 * What code for GPUs asks of tensors.
 */
#ifndef DISTILE_GPU_VIEWS_H
#define DISTILE_GPU_VIEWS_H

#include "runtime/base/context.h"
#include <cstddef>

namespace distile {

/** Whether a tensor's pixels start and end at multiples of `bytes`. */
bool is_in_units(const distile_tensor &tensor, size_t bytes);

/** Rejects a tensor whose channels fill vectors, but whose pixels do not start at multiples of one. */
distile_status check_alignment(distile_context &context, const char *call, const distile_tensor &tensor,
                               const char *name);

}  // namespace distile

#endif
