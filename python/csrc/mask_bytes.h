/** \file
 * Masks of distile as tensors of PyTorch.
 */
#ifndef DISTILE_PYTHON_MASK_BYTES_H
#define DISTILE_PYTHON_MASK_BYTES_H

#include "session.h"

namespace distile::python {

/** The bytes of a mask of this session, as a new tensor of type bool: [batch, height, width], or [batch, tokens]. */
Tensor bytes_of(Session &session, const Tensor &like, distile_mask *mask, int64_t batch, int64_t height, int64_t width,
                bool tokens);

}  // namespace distile::python

#endif
