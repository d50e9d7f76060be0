/** \file
 * Captured graphs of which the GPU runs one at each launch.
 */
#ifndef DISTILE_CUDA_GRAPH_SWITCH_H
#define DISTILE_CUDA_GRAPH_SWITCH_H

#include "runtime/cuda/cuda_device.h"

/** Its functions throw Failure. */
struct distile_cuda_switch {
    distile_cuda_switch(distile::CudaDevice &device, const distile_cuda_switch_args &args);
    ~distile_cuda_switch();
    distile_cuda_switch(const distile_cuda_switch &) = delete;
    distile_cuda_switch &operator=(const distile_cuda_switch &) = delete;

    void launch() const;
    void set_mode(int32_t mode) const;
    distile_cuda_switch_info info() const;
    int32_t num_graphs() const {
        return num_graphs_;
    }

    distile_context &context;

private:
    void build(const distile_cuda_switch_args &args);
    void destroy();

    distile::CudaDevice &device_;
    distile::DeviceMemory state_;
    int32_t num_graphs_;
    CUmodule module_ = nullptr;
    CUgraph graph_ = nullptr;
    CUgraphExec instance_ = nullptr;
};

#endif
