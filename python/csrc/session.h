/** \file
 * Sessions of PyTorch's devices. A context serves one thread at a time, so every thread has its own. On a CPU its loops
 * run in PyTorch's threads.
 */
#ifndef DISTILE_PYTHON_SESSION_H
#define DISTILE_PYTHON_SESSION_H

#include "bindings/session.h"
#include "python/csrc/tensors.h"

namespace distile::python {

class Session : public bindings::Session {
public:
    /** For a GPU, which multiplies float32 as `math` says, or for CPUs if `device_index` is below 0, with `threads`
     * threads. */
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

    /** Fails unless a tensor is a mask on the session's device, and has these sizes. */
    void check_mask(const Tensor &bytes, const Ints *wanted = nullptr) const;
    /** The mask with these bytes: bool or uint8, [batch, height, width], or [batch, tokens], which are images of
     * rows_of_tokens() rows. */
    distile_mask *mask(const Tensor &bytes, int32_t role = 0);

    /** Until release_mask(), the values of this mask do not change, so that calls on a GPU share what they make of it.
     * On a CPU equal masks always do. */
    void fix_mask(const Tensor &bytes);
    void release_mask(const Tensor &bytes);

    /** Whether the next result is fixed as soon as it is there, by the distile_mask that it was written from. */
    void fix_result(bool fixed);
    /** A mask of this shape for a result, to be set and then written as bytes. */
    distile_mask *result(int64_t batch, int64_t height, int64_t width);
    /** Called with the bytes of the last result, which end what was promised of a mask in the same memory. */
    void take_result(const Tensor &bytes);

private:
    /** A distile_mask that holds a fixed mask, seen as images or as tokens. Work on another stream, and in another
     * capture, is not ordered after what set it. */
    struct SetMask {
        bindings::MaskBytes view;
        int32_t role;
        void *stream;
        uint64_t capture;
        distile_mask *mask;
    };
    struct FixedMask {
        Tensor bytes;    /**< Holding it keeps its memory from being used for another. */
        int64_t version; /**< A write in place ends what was promised. */
        std::vector<SetMask> set;
    };

    /** The distile_mask of a fixed mask; null if there is none for these bytes. */
    distile_mask *fixed_mask(const Tensor &bytes, const bindings::MaskBytes &view);
    /** A role that no other fixed mask of this shape has. */
    int32_t free_role(const bindings::MaskBytes &view) const;

    std::vector<FixedMask> fixed_;
    bool fixes_result_ = false;
    std::optional<SetMask> result_; /**< The last one, if it is to be fixed. */
    int32_t device_index_;          /**< Below 0 for CPUs. */
    int32_t threads_;               /**< PyTorch's number of threads, on a CPU. */
    distile_math math_;
};

/** How GPUs multiply float32 in later calls of all threads: a distile_math. */
void set_math(int64_t math);
distile_math current_math();

/** PyTorch's current CUstream of a GPU. */
void *current_stream(int32_t device_index);

}  // namespace distile::python

#endif
