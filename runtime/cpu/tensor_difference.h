/** \file
 * The pixels at which two tensors differ, found by several threads.
 */
#ifndef DISTILE_TENSOR_DIFFERENCE_H
#define DISTILE_TENSOR_DIFFERENCE_H

#include "bit_rows.h"
#include "context.h"
#include <functional>

namespace distile {

/** Writes the words of the mask of where two tensors of one shape and type differ (distile_mask_set_difference).
 * `memory_of_tasks` gives each of some tasks its work space. */
void find_difference(distile_context &context, const distile_tensor &a, const distile_tensor &b, float threshold,
                     uint64_t *words, const std::function<std::vector<RowMemory> &(size_t num_tasks)> &memory_of_tasks);

}  // namespace distile

#endif
