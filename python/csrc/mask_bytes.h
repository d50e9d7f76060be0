/** \file
 * Masks of distile as tensors of PyTorch.
 */
#ifndef DISTILE_PYTHON_MASK_BYTES_H
#define DISTILE_PYTHON_MASK_BYTES_H

#include "session.h"

namespace distile::python {

/** The bytes of a mask of this session, as a new tensor of type bool with so many dimensions. On a CPU only. */
Tensor bytes_of(const Session &session, const Tensor &like, const Mask &mask, int64_t batch, int64_t height,
                int64_t width, bool tokens);

}  // namespace distile::python

#endif
