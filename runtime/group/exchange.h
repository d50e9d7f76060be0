/** \file
 * How pixels get from one context's memory to another's. To add a way, as peer copies or NCCL, add a file that defines
 * an Exchange and a row in exchange.cpp.
 */
#ifndef DISTILE_EXCHANGE_H
#define DISTILE_EXCHANGE_H

#include "runtime/base/context.h"
#include "runtime/group/chain_plan.h"

namespace distile {

/** A tensor of a context, and where it lies in the whole one. */
struct PlacedTensor {
    distile_context *context;
    distile_tensor tensor;
    int32_t image = 0, y = 0, x = 0;

    /** The address of a pixel of the whole tensor. */
    char *pixel(int32_t n, int32_t row, int32_t column) const {
        const int64_t element =
            (n - image) * tensor.stride_n + (row - y) * tensor.stride_h + (column - x) * tensor.stride_w;
        return static_cast<char *>(tensor.data) + element * static_cast<int64_t>(distile_dtype_size(tensor.dtype));
    }
};

/** A way to exchange pixels. A thread that uses a context calls these for it, so several may run at once. */
struct Exchange {
    const char *name;
    /** Whether copies let devices compute meanwhile. */
    bool asynchronous;
    /** Whether it copies from one device to another. */
    bool (*serves)(const Device &from, const Device &to);
    /** Everything that a context has been given so far shall be done before others copy from it. Called before they
     * learn that they may. */
    void (*publish)(distile_context &from);
    /** What a context is given from now on comes after what another has published. */
    void (*follow)(distile_context &to, distile_context &from);
    /** Copies spans of pixels between tensors of the same type and channels. Called by the receiver's thread, or at the
     * end of a run by the sender's. What the receiver is given later, after arrive(), comes after the copies. */
    void (*copy)(const PlacedTensor &from, const PlacedTensor &to, const std::vector<Span> &spans);
    void (*arrive)(distile_context &to);
    /** Waits until everything that a context has been given is done. */
    void (*finish)(distile_context &context);
    /** Reads a mask of the context. */
    void (*read_bits)(distile_mask &mask, BitImage &bits);
};

/** Copies within a process, between CPU contexts. */
extern const Exchange process_exchange;

/** The way from a device to another and back; null if there is none. */
const Exchange *find_exchange(const Device &from, const Device &to);

}  // namespace distile

#endif
