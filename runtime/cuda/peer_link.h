/** \file
 * What a GPU of a group has beside its stream: a stream for copies, events that others wait for, and lists of spans.
 */
#ifndef DISTILE_CUDA_PEER_LINK_H
#define DISTILE_CUDA_PEER_LINK_H

#include "runtime/cuda/side_stream.h"
#include "runtime/group/exchange.h"
#include <mutex>

namespace distile {

struct PreparedSpans;

/** Its functions throw Failure. Other GPUs' threads call published() alone. */
class PeerLink {
public:
    explicit PeerLink(CudaDevice &device);
    ~PeerLink();
    PeerLink(const PeerLink &) = delete;
    PeerLink &operator=(const PeerLink &) = delete;

    /** Lets kernels of this GPU use the memory of another. With `beside`, copies run beside what it computes. */
    void open(const CudaDevice &other, bool beside);
    void prepare(const std::vector<MaskOfPlan> &masks, const std::vector<const SpanList *> &lists);
    void publish(int32_t stage);
    /** As publish(), for the stream of copies. */
    void publish_messages(int32_t stage);
    /** The event of a stage, or null if the GPU has never come to it: then it had nothing to do. */
    CUevent published(int32_t stage) const;
    void follow(const PeerLink &other, int32_t stage) const;
    void copy(const std::vector<Transfer> &transfers);
    /** Gives the GPU spans, and where they lie in a message. */
    void prepare_packed(const std::vector<const SpanList *> &lists);
    /** Packs pixels into messages, after what the GPU computes, or unpacks them, after the messages. */
    void pack(const std::vector<PackedPixels> &pixels);
    void unpack(const std::vector<PackedPixels> &pixels);
    void arrive() const;
    void finish();
    CUstream copy_stream() const;

private:
    /** A copy of spans, which are in GPU memory. */
    struct PreparedCopy {
        PlacedTensor from, to;
        std::shared_ptr<const void> memory;  ///< PreparedSpans.
        bool packs, unpacks;                 ///< The places in a message are those of `to`, or of `from`.
    };

    void record(int32_t stage, CUstream stream);
    /** Copies on the stream for copies. */
    void copy_prepared(const std::vector<PreparedCopy> &copies);
    /** Copies up to most_transfers in units of as many bytes, in one launch. */
    void launch(const PreparedCopy *given, size_t count, int64_t unit);
    static PreparedCopy packed(const PackedPixels &pixels, bool packs);

    CudaDevice &device_;
    SideStream copies_;
    bool beside_ = false;
    mutable std::mutex mutex_;
    std::vector<CUevent> events_;  // By stage.
    /** What work on the GPU may still read. */
    std::vector<std::shared_ptr<const void>> in_use_;
};

}  // namespace distile

#endif
