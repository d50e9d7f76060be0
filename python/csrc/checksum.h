/** \file
 * Checksums of tensors in host memory, which tell whether anything wrote to them.
 */
#ifndef DISTILE_PYTHON_CHECKSUM_H
#define DISTILE_PYTHON_CHECKSUM_H

#include "python/csrc/tensors.h"

namespace distile::python {

/** 64 bits of all elements of a tensor in host memory, at the speed of that memory, in PyTorch's threads. */
uint64_t checksum(const Tensor &tensor);

}  // namespace distile::python

#endif
