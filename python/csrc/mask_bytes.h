/** \file
 * Masks of distile as tensors of PyTorch.
 */
#ifndef DISTILE_PYTHON_MASK_BYTES_H
#define DISTILE_PYTHON_MASK_BYTES_H

#include "python/csrc/session.h"

namespace distile::python {

struct MaskShape {
    int64_t batch, height, width;
    bool tokens; /**< [batch, height * width], not [batch, height, width]. */
};

/** A mask that one call sets, with its bytes as a tensor of type bool: `out`, or a new one if that is null. */
class NewMask {
public:
    NewMask(Session &session, const Tensor &like, const MaskShape &shape, const Tensor *out);
    NewMask(const NewMask &) = delete;
    NewMask &operator=(const NewMask &) = delete;
    ~NewMask();

    /** The mask to set. */
    distile_mask *get() const {
        return mask_;
    }
    /** The bytes, after the call that set it, which returned a status. */
    Tensor bytes_after(distile_status status) const;

private:
    Session &session_;
    Tensor bytes_;
    distile_mask *mask_;
};

}  // namespace distile::python

#endif
