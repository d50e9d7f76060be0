/** \file
 * What rows of one operator and batch share on a GPU.
 */
#ifndef DISTILE_BENCH_GPU_WORKBENCH_H
#define DISTILE_BENCH_GPU_WORKBENCH_H

#include "gpu.h"
#include "gpu_peer.h"
#include "masks.h"
#include "problem.h"
#include <memory>
#include <vector>

namespace distile::bench {

/** The tensors and both sides for one operator and batch. */
class GpuWorkbench {
public:
    /** A convolution of cuDNN, checked once, as a graph. */
    struct Peer {
        std::unique_ptr<GpuPeer> convolution;
        double error = 0;
        std::unique_ptr<GpuGraph> graph;
    };

    /** Without `cudnn` there are no peers. All must live as long as this. */
    GpuWorkbench(const Context &context, const GpuSlice &slice, const Cudnn *cudnn, const Operator &op, int32_t batch,
                 const Kernel &kernel);

    distile_tensor input(bool with_border) const;
    distile_tensor output_tensor() const;
    /** Fills the output with a value that no result has, so that the checks see what was written. */
    void spoil() const;
    /** The error of active pixels of the last call. Throws std::runtime_error if it is too large, or if an inactive
     * pixel is not what the mode asks for. */
    double check_output(const ByteMask &bytes, bool zero) const;
    void set_mask(const Mask &to, const ByteMask &bytes, const DeviceArray<uint8_t> &device_bytes) const;

    const Context &context;
    Problem problem;
    const Kernel &kernel;
    Weights weights;
    Mask mask;
    Peer peer, peer_tf32;

private:
    Peer make_peer(const GpuSlice &slice, const Cudnn &cudnn, bool tf32) const;
    double check_peer() const;
    template<typename Due>
    double error_of(const std::vector<float> &result, const std::vector<size_t> &pixels, const Due &due) const;

    DeviceArray<float> plain_, bordered_, output_, filter_;
};

}  // namespace distile::bench

#endif
