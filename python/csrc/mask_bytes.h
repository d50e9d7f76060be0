/** \file
 * Masks of distile as tensors of PyTorch.
 */
#ifndef DISTILE_PYTHON_MASK_BYTES_H
#define DISTILE_PYTHON_MASK_BYTES_H

#include "session.h"

namespace distile::python {

struct MaskShape {
    int64_t batch, height, width;
    bool tokens; /**< [batch, width], not [batch, height, width]. */
};

/** The bytes of a mask of this session, as a tensor of type bool: `out`, or a new one if that is null. */
Tensor bytes_of(Session &session, const Tensor &like, distile_mask *mask, const MaskShape &shape, const Tensor *out);

}  // namespace distile::python

#endif
