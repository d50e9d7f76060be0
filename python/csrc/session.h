/** \file
 * Sessions of PyTorch's devices. A context serves one thread at a time, so every thread has its own. On a CPU its loops
 * run in PyTorch's threads.
 */
#ifndef DISTILE_PYTHON_SESSION_H
#define DISTILE_PYTHON_SESSION_H

#include "bindings/session.h"
#include "tensors.h"

namespace distile::python {

class Session : public bindings::Session {
public:
    /** For a GPU, which multiplies float32 as `math` says, or for CPUs if `device_index` is below 0, with so many
     * threads.
     */
    Session(int32_t device_index, int32_t threads, distile_math math);
    /** This thread's session for the tensor's device. On a GPU, its work goes to PyTorch's current stream. */
    static Session &of(const Tensor &tensor);

    /** On a GPU, later work goes to PyTorch's current stream. */
    void follow_current_stream();

    distile_math math() const {
        return math_;
    }

    /** Fails if a tensor is on another device than the session. `what` names it: "the mask". */
    void check_device(const Tensor &tensor, const char *what) const;

    /** The mask with these bytes: bool or uint8, [batch, height, width], or [batch, tokens] for images of height 1. */
    distile_mask *mask(const Tensor &bytes, int32_t role = 0);

private:
    int32_t device_index_; /**< Below 0 for CPUs. */
    int32_t threads_;      /**< Of PyTorch, on a CPU. */
    distile_math math_;
};

/** How GPUs multiply float32 in later calls of all threads: a distile_math. */
void set_math(int64_t math);

}  // namespace distile::python

#endif
