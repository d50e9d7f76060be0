/** \file
 * Finds the pixels at which two tensors differ, with several threads.
 */
#ifndef DISTILE_TENSOR_DIFFERENCE_H
#define DISTILE_TENSOR_DIFFERENCE_H

#include "runtime/base/context.h"
#include "runtime/cpu/bit_rows.h"
#include <functional>

namespace distile {

/** Writes the mask words for distile_mask_set_difference. `memory_of_tasks` holds each task's workspace. */
void find_difference(distile_context &context, const distile_tensor &a, const distile_tensor &b, float threshold,
                     uint64_t *words, const std::function<std::vector<RowMemory> &(size_t num_tasks)> &memory_of_tasks);

}  // namespace distile

#endif
