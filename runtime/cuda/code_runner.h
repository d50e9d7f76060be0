/** \file
 * Loads and calls the GPU code of PolyKernels, with the callbacks that it needs.
 */
#ifndef DISTILE_CUDA_CODE_RUNNER_H
#define DISTILE_CUDA_CODE_RUNNER_H

#include "kernels/call.h"
#include "runtime/base/device.h"
#include "runtime/cuda/device_memory.h"
#include <cuda.h>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace distile {

/** The loaded GPU code of a PolyKernel. Owns it. */
class CudaCode : public LoadedCode {
public:
    struct Module {
        CUmodule module = nullptr;
        std::vector<std::pair<const char *, CUfunction>> functions;
        /** The resident clusters of a function, by the blocks of a cluster. */
        std::map<std::pair<CUfunction, int32_t>, int32_t> clusters;
    };

    explicit CudaCode(CudaDevice &device) : device_(device) {
    }
    /** Waits for the GPU, which may still run the code. */
    ~CudaCode() override;

    /** The module for this code, loaded on first use. Throws Failure. */
    Module &module(const char *code);
    /** A kernel of a module, found on first use and then allowed its shared memory. Throws Failure. */
    CUfunction function(Module &module, const char *name, int32_t shared_bytes) const;

private:
    CudaDevice &device_;
    std::map<const char *, Module> modules_;
};

/** Calls variants. */
class CodeRunner {
public:
    explicit CodeRunner(CudaDevice &device) : device_(device), signals_(device) {
    }

    RunResult run(CudaCode &code, const distile_variant &variant, distile_kernel_call &call);
    /** Makes the call that the GPU chooses. */
    RunResult run_chosen(CudaCode &code, const VariantCalls &calls);
    /** Makes the code load its modules and find its kernels, but launches and allocates nothing. */
    RunResult rehearse(CudaCode &code, const distile_variant &variant, distile_kernel_call &call);

    /** The callbacks for the code. */
    static const distile_gpu_hooks hooks;

private:
    template<typename Body> RunResult guarded_call(CudaCode &code, bool rehearsal, const Body &body);
    template<typename Body> static int guarded_hook(distile_hooks *hooks, const Body &body);
    void launch(const distile_gpu_launch &launch) const;
    int32_t count_resident(const distile_gpu_launch &launch) const;
    uint64_t allocate(uint64_t bytes);
    uint64_t signals(uint64_t bytes);
    void map_boxes(const distile_gpu_boxes &boxes, CUtensorMap *map) const;

    CudaDevice &device_;
    // State of the current call.
    bool rehearsal_ = false;
    CudaCode *code_ = nullptr;
    CudaCode::Module *module_ = nullptr;
    distile_status status_ = DISTILE_OK;  ///< The status of a failure, whose message is stored.
    // One per allocation of a variant. Calls on one stream run in order, so they can share it.
    std::vector<std::unique_ptr<DeviceMemory>> scratch_;
    size_t scratch_used_ = 0;
    DeviceMemory signals_;
};

}  // namespace distile

#endif
