/** \file
 * The other side of a row on a GPU: an operator, channels last, by cuDNN, by cuBLAS or by our own dense variant.
 */
#ifndef DISTILE_BENCH_GPU_PEER_H
#define DISTILE_BENCH_GPU_PEER_H

#include "autoscheduler/measure/gpu_measure.h"
#include <distile/polykernel.h>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace distile::bench {

class GpuPeer {
public:
    virtual ~GpuPeer() = default;
    /** Puts the operator on the stream. */
    virtual void run() const = 0;
    /** Puts the operator on the stream, with another contiguous array of the GPU for its output. Throws PeerMissing if
     * this peer cannot. */
    virtual void run_into(void *output) const = 0;
    /** Name and version. */
    virtual std::string description() const = 0;
    /** The code that it runs, and among how many it was chosen. */
    virtual std::string implementation() const = 0;
};

/** cuDNN on one stream. */
class Cudnn {
public:
    /** Searches for the fastest plan of a convolution take `seconds` at most. Throws PeerMissing where this build or
     * this machine lacks it. */
    Cudnn(const GpuSlice &slice, double seconds);
    ~Cudnn();
    Cudnn(const Cudnn &) = delete;
    Cudnn &operator=(const Cudnn &) = delete;

    /** Its name and version. */
    std::string description() const;

    /** Tells whether a plan is precise enough; `run` puts it on the stream. */
    using Check = std::function<bool(const std::function<void()> &run)>;

    /** The fastest right one of all that its graph interface and its legacy interface offer, by replays of graphs. The
     * tensors have no border and one type. Sums are float32; the factors of float32 are rounded to TF32 where `math`
     * allows it. `filter` is [output channel, row, column, input channel of a group] on the device, in the tensors'
     * type; of a transposed convolution, [input channel, row, column, output channel]. Throws PeerMissing for other
     * kinds, and std::runtime_error if no plan is right. */
    std::unique_ptr<GpuPeer> convolution(distile_operator_kind kind, const distile_conv2d &conv,
                                         const distile_tensor &input, const void *filter, const distile_tensor &output,
                                         distile_math math, const Check &is_right) const;

private:
    struct Session;
    std::shared_ptr<Session> session_;
};

/** A linear layer over contiguous rows. */
struct LinearShape {
    int64_t rows;
    int32_t in_channels, out_channels;
    distile_dtype dtype; /**< The type of all arrays. */
    distile_math math;
};

/** cuBLAS on one stream. */
class Cublas {
public:
    /** Throws PeerMissing where this build or this machine lacks it. */
    explicit Cublas(const GpuSlice &slice);
    ~Cublas();
    Cublas(const Cublas &) = delete;
    Cublas &operator=(const Cublas &) = delete;

    /** Its name and version. */
    std::string description() const;

    /** The fastest of the algorithms that its heuristic offers, by replays of graphs. Arrays are of the device:
     * `input` [row, input channel], `filter` [output channel, input channel], `bias` [output channel] and `output`
     * [row, output channel]. Throws std::runtime_error if it offers none. */
    std::unique_ptr<GpuPeer> linear(const LinearShape &shape, const void *input, const void *filter, const void *bias,
                                    void *output) const;
    /** Calls read the filters in turns, as layers of a network, so that no cache has the next one. */
    std::unique_ptr<GpuPeer> linear(const LinearShape &shape, const void *input,
                                    const std::vector<const void *> &filters, const void *bias, void *output) const;

    struct Session;

private:
    std::shared_ptr<Session> session_;
};

/** cuSPARSELt on one stream: weights of the pattern 2:4. */
class CusparseLt {
public:
    /** Throws PeerMissing where this build or this machine lacks it. */
    explicit CusparseLt(const GpuSlice &slice);
    ~CusparseLt();
    CusparseLt(const CusparseLt &) = delete;
    CusparseLt &operator=(const CusparseLt &) = delete;

    /** Its name and version. */
    std::string description() const;

    /** The algorithm that its own search finds, for arrays as cuBLAS takes them. Calls read the filters in turns. */
    std::unique_ptr<GpuPeer> linear(const LinearShape &shape, const void *input,
                                    const std::vector<const void *> &filters, const void *bias, void *output) const;

    struct Session;

private:
    std::shared_ptr<Session> session_;
};

}  // namespace distile::bench

#endif
