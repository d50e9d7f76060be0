/** \file
 * Planners (planner.h of the runtime) by numbers. Tensors that alias their buffers leave as DLPack, because the stable
 * ABI has no tensors of foreign memory before PyTorch 2.11.
 */
#ifndef DISTILE_PYTHON_PLANNER_H
#define DISTILE_PYTHON_PLANNER_H

#include "python/csrc/tensors.h"

namespace distile::python {

/** The number of a new planner on the device of `like`. */
int64_t make_planner(const Tensor &like, int64_t buffers, int64_t clearing);
/** The address of a DLManagedTensor, which its receiver owns: the next output, of the mask's extents. It keeps the
 * planner's buffers alive. */
int64_t next_output(const Tensor &mask, int64_t planner, int64_t channels, ScalarType type, bool whole);
int64_t planner_bytes(int64_t planner);
/** Its buffers live as long as a tensor that aliases them. */
void free_planner(int64_t planner);

}  // namespace distile::python

#endif
