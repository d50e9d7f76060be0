/** \file
 * What calls on one device share in one thread: a context, kernels, and masks.
 *
 * A context serves one thread at a time, so every thread has its own. On a CPU its loops run in PyTorch's threads.
 */
#ifndef DISTILE_PYTHON_SESSION_H
#define DISTILE_PYTHON_SESSION_H

#include "tensors.h"
#include <distile/distile.hpp>
#include <unordered_map>

namespace distile::python {

class Session {
public:
    /** For a GPU, or for CPUs if `device_index` is below 0, with so many threads. */
    Session(int32_t device_index, int32_t threads);
    /** This thread's session for the tensor's device. On a GPU, its work goes to PyTorch's current stream. */
    static Session &of(const Tensor &tensor);

    distile_context *context() const {
        return context_.get();
    }
    distile_device device() const {
        return device_;
    }
    distile_kernel *kernel(const distile_polykernel &polykernel);

    /** The mask with these bytes: bool or uint8, [batch, height, width], or [batch, tokens] for images of height 1. On
     * a CPU, equal masks share one distile_mask with its tile lists, as long as it is among the last few. On a GPU, a
     * distile_mask serves all masks of one shape and role. Masks with different roles stay valid together until the
     * next call. */
    distile_mask *mask(const Tensor &bytes, int32_t role = 0);
    /** A mask to be set. */
    Mask make_mask() const;

private:
    struct CachedMask {
        Mask mask;
        int32_t role = 0;
        int64_t batch = 0, height = 0, width = 0;
    };

    /** A mask to be set to other bytes. */
    Mask take_mask(const CachedMask &wanted);
    distile_mask *keep(CachedMask &&mask);
    distile_mask *equal_mask(CachedMask &&wanted);

    distile_device device_;
    int32_t threads_; /**< Of PyTorch, on a CPU. */
    Context context_;
    std::unordered_map<const distile_polykernel *, Kernel> kernels_;
    std::vector<CachedMask> masks_; /**< The last used first. */
    Mask spare_;
};

}  // namespace distile::python

#endif
