/** \file
 * What rows of the same operator and batch share on a GPU.
 */
#ifndef DISTILE_BENCH_GPU_WORKBENCH_H
#define DISTILE_BENCH_GPU_WORKBENCH_H

#include "autoscheduler/measure/gpu.h"
#include "bench/harness/masks.h"
#include "bench/harness/numerics.h"
#include "bench/harness/problem.h"
#include "bench/peers/gpu_peer.h"
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace distile::bench {

/** The tensors and both sides for one operator and batch. */
class GpuWorkbench {
public:
    /** The libraries of the peers; null where there is none. */
    struct Libraries {
        const Cudnn *cudnn;
        const Cublas *cublas;
    };
    /** A dense operator, checked once, as a graph. */
    struct Peer {
        std::unique_ptr<GpuPeer> dense;
        double error = 0;
        std::unique_ptr<GpuGraph> graph;
    };

    /** `libraries` may lack some. All must outlive this object. */
    GpuWorkbench(const Context &context, const GpuSlice &slice, const Libraries &libraries, const BenchOperator &op,
                 const Numerics &numerics, int32_t batch, const Kernel &kernel);

    /** "cudnn" or "cublas" in the same numerics, "cudnn-tf32" or our own "dense", made at its first use. Throws
     * PeerMissing if there is none, and std::runtime_error if its result is wrong. */
    const Peer &peer(const std::string &name);
    /** cuBLAS over the active tokens of a linear layer, gathered and scattered. Throws as peer() does. */
    Peer gathered_peer(const ByteMask &mask) const;

    distile_tensor input(bool with_border) const;
    /** Empty for operators without a residual. */
    std::optional<distile_tensor> residual() const;
    distile_tensor output_tensor() const;
    /** Fills the output with a value that no result has, so that the checks see which pixels were written. */
    void spoil() const;
    /** The error of active pixels of the last call, which is the peer's if it has no epilogue. Throws
     * std::runtime_error if it is too large, or if an inactive pixel is not what the mode asks for. */
    double check_output(const ByteMask &bytes, bool zero, bool has_epilogue = true) const;
    /** Checks an output that lies elsewhere and began as spoiled_output(). */
    double check_output(const std::vector<uint8_t> &result, const ByteMask &bytes, bool zero, bool has_epilogue) const;
    std::vector<uint8_t> spoiled_output() const;
    /** A mask of the workbench's context, or of `owner`. */
    void set_mask(const Mask &to, const ByteMask &bytes, const DeviceArray<uint8_t> &device_bytes,
                  const Context *owner = nullptr) const;

    const Context &context;
    Problem problem;
    const Kernel &kernel;
    Weights weights;
    Mask mask;

private:
    Peer make_peer(const std::string &name) const;
    Peer as_graph(std::unique_ptr<GpuPeer> peer, double error) const;
    /** Throws PeerMissing if there is no cuBLAS, or if the operator is no linear layer. */
    const Cublas &cublas() const;
    LinearShape linear_shape() const;
    /** The largest difference from plain loops. */
    struct Difference {
        double error; /**< Relative to the largest value. */
        std::string where;
    };
    /** The difference at some of these pixels; without an epilogue, the convolution alone is expected. */
    Difference difference_of(const std::vector<uint8_t> &result, std::vector<size_t> pixels, bool has_epilogue) const;
    Difference check_peer(bool has_epilogue) const;

    const Numerics &numerics_;
    const GpuSlice &slice_;
    Libraries libraries_;
    DeviceArray<uint8_t> plain_, bordered_, output_;
    std::optional<DeviceArray<uint8_t>> residual_;
    DeviceArray<uint8_t> filter_, bias_; /**< In the operator's type. */
    std::map<std::string, Peer> peers_;
    std::map<std::string, std::exception_ptr> failures_; /**< Why peers are missing: each is searched for once. */
};

}  // namespace distile::bench

#endif
