/** \file
 * A GPU in use: its context, the caller's stream, and what is on it.
 */
#ifndef DISTILE_CUDA_DEVICE_H
#define DISTILE_CUDA_DEVICE_H

#include "context.h"
#include "device_memory.h"
#include "driver.h"
#include "kernels/pixels.h"
#include "module_loader.h"
#include "own_kernels.h"
#include "side_stream.h"
#include "used_context.h"
#include <distile/cuda.h>
#include <memory>
#include <optional>
#include <string>

namespace distile {

class CodeRunner;

/** Blocks of a launch, and what each has. */
struct LaunchGrid {
    uint32_t x, y = 1;
    uint32_t threads = block_threads, shared_bytes = 0;
};

/** Blocks for a number of threads. */
inline LaunchGrid grid_of(uint64_t threads, uint32_t threads_of_block = block_threads) {
    return {static_cast<uint32_t>((threads + threads_of_block - 1) / threads_of_block), 1, threads_of_block};
}

class CudaDevice : public Device {
public:
    CudaDevice(distile_context &given, const Driver &loaded);
    ~CudaDevice() override;
    /** Everything else needs it. */
    void open(const distile_cuda_options &options);

    distile_device kind() const override {
        return DISTILE_CUDA;
    }
    int32_t threads() const override {
        return multiprocessors_;
    }
    const void *memory_space() const override {
        return used_->handle;
    }
    void enter() override;
    void leave() noexcept override;
    void *stream() const override {
        return caller_stream;
    }
    bool is_capturing() const override;

    std::unique_ptr<distile_mask> make_mask() override;
    std::unique_ptr<distile_planner> make_planner(const PlannerSettings &settings) override;
    std::shared_ptr<const void> upload(const void *from, size_t bytes) override;

    distile_status check_memory(const char *call, const distile_tensor &tensor, const char *name) const override;
    ScratchMemory take_scratch(size_t bytes) override;
    void update_pixels(distile_mask *mask, const distile_tensor &output, const distile_tensor *from,
                       bool zero) override;
    void upsample_nearest(const distile_tensor &input, const distile_tensor &output, distile_mask &mask,
                          int32_t scale_h, int32_t scale_w, bool zero) override;
    void convert_layout(const distile_nchw &planes, const distile_tensor &tensor, bool to_planes) override;

    std::string missing_features(const distile_polykernel &polykernel) const override;
    int64_t most_virtual_pixels() const override {
        return (int64_t{1} << 30) - 1;
    }
    std::unique_ptr<LoadedCode> load(const distile_kernel &kernel) override;
    RunResult run(LoadedCode *code, const distile_variant &variant, distile_kernel_call &call,
                  const Zeros *zeros) override;

    // What the other files of this folder use.

    const char *name_of(CUresult result) const;
    /** Stores a message about what failed and throws, unless the result is CUDA_SUCCESS. */
    void check(CUresult result, const char *what) const;
    /** Throws where a graph is being captured: `what` begins the second half of the message. */
    void refuse_capture(const char *what) const;
    /** Throws unless some of the caller's memory is the GPU's and begins at a multiple of `alignment` bytes. */
    void check_pointer(const void *pointer, size_t alignment, const char *name) const;
    /** Puts a kernel on a stream. */
    template<typename... Args>
    void launch(CUfunction function, CUstream on, const LaunchGrid &grid, Args... args) const {
        void *arguments[] = {&args...};
        check(driver.cuLaunchKernel(function, grid.x, grid.y, 1, grid.threads, 1, 1, grid.shared_bytes, on, arguments,
                                    nullptr),
              "cuLaunchKernel");
    }
    /** The most blocks of a launch whose threads go round: what the chip holds at once. */
    uint32_t most_blocks() const {
        return 8 * static_cast<uint32_t>(multiprocessors_);
    }

    const Driver &driver;
    CUstream caller_stream = nullptr;
    int driver_version = 0;
    int32_t capability = 0;
    std::optional<ModuleLoader> loader;
    std::unique_ptr<OwnKernels> kernels;
    std::unique_ptr<CodeRunner> runner;
    /** How often a block looks at one that says nothing, until it counts the tiles of that one itself. */
    uint32_t patience = 256;
    /** The words of a mask that is made from itself. */
    std::unique_ptr<DeviceMemory> operand;

private:
    std::shared_ptr<const UsedContext> use_context(const distile_cuda_options &options) const;
    void find_features();
    bool is_device_memory(const void *pointer) const;
    void update_pixels(CUstream on, const DeviceBits &bits, const PixelUpdate &update) const;

    std::shared_ptr<const UsedContext> used_;
    CUdevice device_ = 0;
    int32_t multiprocessors_ = 0;
    /** For zeros beside an operator. */
    std::unique_ptr<SideStream> side_;
    /** What a dense candidate of the application's writes before its active pixels are copied. */
    std::unique_ptr<DeviceMemory> dense_output_;
};

/** The status for what a driver returned. */
distile_status status_of(CUresult result);

}  // namespace distile

#endif
