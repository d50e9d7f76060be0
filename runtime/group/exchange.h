/** \file
 * How pixels get from one context's memory to another's, or into messages for other ranks. To add a way between
 * devices, add a file that defines an Exchange, which the device that has it returns.
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

/** Spans of pixels to copy between tensors of the same type and channels. */
struct Transfer {
    const PlacedTensor *from, *to;
    const SpanList *spans;
};

/** Spans of a tensor, whose pixels follow each other in a message. */
struct PackedPixels {
    const PlacedTensor *tensor;
    const SpanList *spans;
    void *message;
};

/** A mask of a device's own, and its pixels. */
struct MaskOfPlan {
    distile_mask *mask;
    const BitImage *bits;
};

/** A way to exchange pixels. A thread that uses a context calls these for it, so several may run at once. They throw
 * Failure with a message in that context. */
struct Exchange {
    /** Whether copies let devices compute meanwhile. */
    bool asynchronous;
    /** Whether it copies from one device to another. */
    bool (*serves)(const Device &from, const Device &to);
    /** Called once for each pair of devices of a group, before anything else. With `beside`, a device computes while
     * copies to it travel. */
    void (*connect)(distile_context &from, distile_context &to, bool beside);
    /** Gives a context the masks and the spans of a new plan, so that copies need not wait for them. */
    void (*prepare)(distile_context &of, const std::vector<MaskOfPlan> &masks,
                    const std::vector<const SpanList *> &lists);
    /** Everything that a context has been given so far shall be done before others copy from it. Called before they
     * learn that it has come to this stage of the run, from 0 on. */
    void (*publish)(distile_context &from, int32_t stage);
    /** The copies of a context, and after arrive() all that it is given, come after what another has published by that
     * stage. */
    void (*follow)(distile_context &to, distile_context &from, int32_t stage);
    /** Copies pixels, after what `by` has been given. That is the receiver, or where a result goes to the first
     * context, the sender. */
    void (*copy)(distile_context &by, const std::vector<Transfer> &transfers);
    /** What a context is given from now on comes after its copies. */
    void (*arrive)(distile_context &to);
    /** Waits until everything that a context has been given is done. */
    void (*finish)(distile_context &context);
    /** Reads a mask of the context. */
    void (*read_bits)(distile_mask &mask, BitImage &bits);

    // For ranks, whose pixels travel in messages. The ways from a context to itself have these.
    /** Memory of the context's device, for messages. The devices of its process that are in a group with it use it. */
    std::shared_ptr<void> (*message_memory)(distile_context &of, size_t bytes);
    /** Gives a context spans that it packs, so that messages need not wait for them. */
    void (*prepare_packed)(distile_context &of, const std::vector<const SpanList *> &lists);
    /** Packs pixels into messages, after what the context has been given, or unpacks them, after the messages. */
    void (*pack)(distile_context &by, const std::vector<PackedPixels> &pixels);
    void (*unpack)(distile_context &by, const std::vector<PackedPixels> &pixels);
    /** The stream on which it does; null on CPUs. */
    void *(*message_stream)(distile_context &of);
    /** As publish(), of what that stream has been given: others follow what was packed, or what has arrived. */
    void (*publish_messages)(distile_context &from, int32_t stage);
};

/** Copies within a process, between CPU contexts. */
extern const Exchange process_exchange;

/** The way from a device to another and back; null if there is none. */
const Exchange *find_exchange(const Device &from, const Device &to);

}  // namespace distile

#endif
