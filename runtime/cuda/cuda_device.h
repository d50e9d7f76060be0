/** \file
 * A GPU in use: its context, the caller's stream, and the work on it.
 */
#ifndef DISTILE_CUDA_DEVICE_H
#define DISTILE_CUDA_DEVICE_H

#include "runtime/base/context.h"
#include "runtime/cuda/device_memory.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/kernels/pixels.h"
#include "runtime/cuda/library_kernels.h"
#include "runtime/cuda/module_loader.h"
#include "runtime/cuda/side_stream.h"
#include "runtime/cuda/used_context.h"
#include <distile/cuda.h>
#include <memory>
#include <optional>
#include <string>

namespace distile {

class CodeRunner;
class PeerLink;
class StageRunner;
struct SummedPixels;
struct TileList;

/** The blocks of a launch, and the resources of each. */
struct LaunchGrid {
    uint32_t x, y = 1;
    uint32_t threads = block_threads, shared_bytes = 0;
    uint32_t z = 1, threads_y = 1, threads_z = 1;
    uint32_t cluster = 1;   ///< Blocks of a cluster along x, which divide x.
    bool together = false;  ///< All blocks run at once.
    bool early = false;     ///< The kernel may start while earlier work of the stream still runs, and waits itself.
};

/** The grid for a number of threads. */
inline LaunchGrid grid_of(uint64_t threads, uint32_t threads_of_block = block_threads) {
    return {static_cast<uint32_t>((threads + threads_of_block - 1) / threads_of_block), 1, threads_of_block};
}

class CudaDevice : public Device {
public:
    CudaDevice(distile_context &given, const Driver &loaded);
    ~CudaDevice() override;
    /** Must come before everything else. */
    void open(const distile_cuda_options &options);

    distile_device kind() const override {
        return DISTILE_CUDA;
    }
    double launch_us() const override {
        return context_launch_us;
    }
    int32_t threads() const override {
        return multiprocessors_;
    }
    const void *memory_space() const override {
        return used_->handle;
    }
    const Exchange *exchange() const override;
    void enter() override;
    void leave() noexcept override;
    CUcontext handle() const {
        return used_->handle;
    }
    CUdevice number() const {
        return device_;
    }
    void *stream() const override {
        return caller_stream;
    }
    bool is_capturing() const override;

    std::unique_ptr<distile_mask> make_mask() override;
    std::unique_ptr<distile_planner> make_planner(const PlannerSettings &settings) override;
    std::shared_ptr<const void> upload(const void *from, size_t bytes) override;
    /** Memory that is not initialised. */
    std::shared_ptr<void> allocate(size_t bytes);

    distile_status check_memory(const char *call, const distile_tensor &tensor, const char *name) const override;
    ScratchMemory take_scratch(size_t bytes) override;
    void update_pixels(distile_mask *mask, const distile_tensor &output, const distile_tensor *from,
                       bool zero) override;
    void write(const Zeros &zeros) override;
    void upsample_nearest(const distile_tensor &input, const distile_tensor &output, distile_mask &mask,
                          int32_t scale_h, int32_t scale_w, bool zero) override;
    void normalize(const Normalization &normalization) override;
    void pool(const Pooling &pooling) override;
    void pool_globally(const GlobalPooling &pooling) override;
    void combine(const TensorCombination &combination) override;
    void find_statistics(const GroupStatistics &statistics) override;
    void normalize_groups(const GroupNormalization &normalization) override;
    void pack(const distile_tensor &tensor, distile_mask &mask, const distile_tensor &packed) override;
    void unpack(const distile_tensor &packed, distile_mask &mask, const distile_tensor &tensor, bool zero) override;
    void convert_layout(const distile_nchw &planes, const distile_tensor &tensor, bool to_planes) override;

    const StageTarget *stage_target() const override;
    void run_stage(const Stage &stage, StageTrace *trace) override;
    std::string missing_features(const distile_polykernel &polykernel) const override;
    int64_t most_virtual_pixels() const override {
        return (int64_t{1} << 30) - 1;
    }
    std::unique_ptr<LoadedCode> load(const distile_kernel &kernel) override;
    bool chooses_for(const distile_mask &mask) const override;
    std::unique_ptr<DeviceChooser> make_chooser(int32_t num_variants) override;
    RunResult run(LoadedCode *code, const VariantCalls &calls, const Zeros *zeros) override;

    // For the other files of this folder.

    const char *name_of(CUresult result) const;
    /** Unless the result is CUDA_SUCCESS, stores a message about what failed and throws. */
    void check(CUresult result, const char *what) const;
    /** Throws during graph capture; `what` begins the message. */
    void refuse_capture(const char *what) const;
    /** Throws unless a caller's pointer is in this GPU's memory and aligned to `alignment` bytes. */
    void check_pointer(const void *pointer, size_t alignment, const char *name) const;
    /** Launches a kernel on a stream. */
    template<typename... Args>
    void launch(CUfunction function, CUstream on, const LaunchGrid &grid, Args... args) const {
        void *arguments[] = {&args...};
        enqueue(function, on, grid, arguments);
    }
    /** Launches a kernel with the addresses of its arguments. */
    void enqueue(CUfunction function, CUstream on, const LaunchGrid &grid, void **arguments) const;
    /** The most clusters of a grid that run at once. */
    int32_t most_clusters(CUfunction function, const LaunchGrid &grid) const;
    /** The most blocks of a grid-stride launch: what the chip holds at once. */
    uint32_t most_blocks() const {
        return 8 * static_cast<uint32_t>(multiprocessors_);
    }

    const Driver &driver;
    CUstream caller_stream = nullptr;
    bool choose_on_device = false;  ///< Let the device choose, also where the host could.
    double context_launch_us = 0;   ///< launch_us() of this context.
    int driver_version = 0;
    int32_t capability = 0;
    int32_t most_shared_bytes = 0;  ///< The most that a block can have.
    bool has_whole_gpu = true;      ///< Else some of its multiprocessors.
    std::optional<ModuleLoader> loader;
    std::unique_ptr<LibraryKernels> kernels;
    std::unique_ptr<CodeRunner> runner;
    /** How often a block polls a silent predecessor before it counts that block's tiles itself. */
    uint32_t patience = 256;
    /** Null until a group has the context. */
    std::unique_ptr<PeerLink> link;
    /** A copy of the words of a mask that is both operand and result. */
    std::unique_ptr<DeviceMemory> operand;

private:
    std::shared_ptr<const UsedContext> use_context(const distile_cuda_options &options) const;
    void find_features();
    bool is_device_memory(const void *pointer) const;
    void update_pixels(CUstream on, const DeviceBits &bits, const PixelUpdate &update) const;
    void write(CUstream on, const Zeros &zeros) const;
    /** Launches a kernel for listed pixels that are split into teams. */
    template<typename Pixels> void launch_pixels(const LibraryKernels::PixelKernels &functions, bool in_vectors,
                                                 const TileList &list, const Pixels &pixels) const;
    /** Sums the active pixels of each image in blocks, whose moments are in scratch memory, with `bytes_behind` bytes
     * behind them. */
    SummedPixels sum_pixels(const distile_tensor &tensor, distile_mask *mask, bool largest, size_t bytes_behind = 0);
    void merge_groups(const SummedPixels &sums, const GroupStatistics &statistics) const;
    /** Copies between the active pixels of a tensor and the first ones of a packed tensor. */
    void move_packed(const distile_tensor &tensor, distile_mask &mask, const distile_tensor &packed, bool to_packed,
                     bool zero) const;

    std::shared_ptr<const UsedContext> used_;
    CUdevice device_ = 0;
    int32_t multiprocessors_ = 0;
    /** For zeros beside an operator. */
    std::unique_ptr<SideStream> side_;
    /** Null until a stage runs. */
    std::unique_ptr<StageRunner> stages_;
    /** The output of a dense candidate before its active pixels are copied. */
    std::unique_ptr<DeviceMemory> dense_output_;
};

/** The status for a driver's result. */
distile_status status_of(CUresult result);

}  // namespace distile

#endif
