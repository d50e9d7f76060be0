/** \file
 * Runs stages on a GPU.
 */
#ifndef DISTILE_CUDA_STAGE_RUNNER_H
#define DISTILE_CUDA_STAGE_RUNNER_H

#include "runtime/cuda/cuda_device.h"
#include "runtime/stage/stage.h"

namespace distile {

/** Keeps the kernels loaded for its lifetime. */
class StageRunner {
public:
    /** Throws Failure: UNSUPPORTED_DEVICE unless the GPU has compute capability 9.0. */
    explicit StageRunner(CudaDevice &device);
    ~StageRunner();
    StageRunner(const StageRunner &) = delete;
    StageRunner &operator=(const StageRunner &) = delete;

    void run(const Stage &stage);

private:
    void check_memory(const Stage &stage) const;

    CudaDevice &device_;
    CUmodule module_ = nullptr;
    CUfunction begin_ = nullptr, float16_ = nullptr, bfloat16_ = nullptr;
    DeviceMemory memory_;
};

}  // namespace distile

#endif
