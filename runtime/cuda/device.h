/** \file
 * A GPU in use: its context, its stream, its memory and the code that is loaded.
 */
#ifndef DISTILE_CUDA_DEVICE_H
#define DISTILE_CUDA_DEVICE_H

#include "context.h"
#include "cubin_cache.h"
#include "driver.h"
#include "mask_kernels.h"
#include <distile/cuda.h>
#include <map>
#include <memory>
#include <vector>

namespace distile {

/** Thrown within the library when the driver refuses a call; guarded_cuda() makes a status of it. */
struct CudaFailure {
    distile_status status;
};

/** Blocks of a launch, and what each has. */
struct LaunchGrid {
    uint32_t x, y = 1;
    uint32_t threads = mask_threads, shared_bytes = 0;
};

/** Memory on the device that grows and never moves under a captured graph: what it grew out of is kept. */
class DeviceMemory {
public:
    explicit DeviceMemory(distile_cuda &cuda) : cuda_(cuda) {
    }
    ~DeviceMemory();
    DeviceMemory(const DeviceMemory &) = delete;
    DeviceMemory &operator=(const DeviceMemory &) = delete;

    /** Makes room for a number of bytes, whatever they held before. Throws CudaFailure. */
    void reserve(uint64_t bytes);
    template<typename T> T *as() const {
        return reinterpret_cast<T *>(blocks_.empty() ? 0 : blocks_.back());
    }
    CUdeviceptr address() const {
        return blocks_.empty() ? 0 : blocks_.back();
    }
    /** Bytes of the memory, and of all that is kept. */
    uint64_t bytes() const {
        return bytes_;
    }
    uint64_t total_bytes() const {
        return total_bytes_;
    }

private:
    distile_cuda &cuda_;
    std::vector<CUdeviceptr> blocks_;
    uint64_t bytes_ = 0, total_bytes_ = 0;
};

/** A second stream beside the caller's. Throws CudaFailure. */
class SideStream {
public:
    explicit SideStream(distile_cuda &cuda);
    ~SideStream();
    SideStream(const SideStream &) = delete;
    SideStream &operator=(const SideStream &) = delete;

    CUstream stream() const {
        return stream_;
    }
    /** Remembers what is on the caller's stream now; begin() lets this one wait for it. */
    void fork() const;
    void begin() const;
    /** Lets the caller's stream wait for what is on this one now. */
    void join() const;

private:
    void destroy() const;

    distile_cuda &cuda_;
    CUstream stream_ = nullptr;
    CUevent forked_ = nullptr, ended_ = nullptr;
};

/** The GPU code of a PolyKernel that was loaded, as long as this lives. */
class LoadedCode {
public:
    struct Module {
        CUmodule module = nullptr;
        std::vector<std::pair<const char *, CUfunction>> functions;
    };

    explicit LoadedCode(distile_cuda &cuda) : cuda_(cuda) {
    }
    /** Waits for the GPU, which may be running it. */
    ~LoadedCode();
    LoadedCode(const LoadedCode &) = delete;
    LoadedCode &operator=(const LoadedCode &) = delete;

    /** The module of some PTX, loaded when it is first asked for. Throws CudaFailure. */
    Module &module(const char *ptx);

private:
    distile_cuda &cuda_;
    std::map<const char *, Module> modules_;
};

}  // namespace distile

struct distile_cuda : distile_hooks {
    distile_cuda(distile_context *context, const distile::Driver &driver);
    ~distile_cuda();
    distile_cuda(const distile_cuda &) = delete;
    distile_cuda &operator=(const distile_cuda &) = delete;

    /** Throws CudaFailure. Everything else needs it. */
    void open(const distile_cuda_options &options);
    /** Stores a message about what failed and throws, unless the result is CUDA_SUCCESS. */
    void check(CUresult result, const char *what) const;
    /** The status for a result, whose message is stored. */
    distile_status failed(CUresult result, const char *what) const;
    bool is_capturing() const;
    /** Throws CudaFailure unless memory at an address is the GPU's. */
    void check_pointer(const void *pointer, const char *call, const char *name) const;
    /** Puts a kernel on a stream. */
    template<typename... Args>
    void launch(CUfunction function, CUstream on, const distile::LaunchGrid &grid, Args... args) const {
        void *arguments[] = {&args...};
        check(driver.cuLaunchKernel(function, grid.x, grid.y, 1, grid.threads, 1, 1, grid.shared_bytes, on, arguments,
                                    nullptr),
              "cuLaunchKernel");
    }

    distile_context *host;
    const distile::Driver &driver;
    CUdevice device = 0;
    CUcontext cu = nullptr;
    CUstream stream = nullptr;
    int32_t capability = 0, multiprocessors = 0;
    CUfunction pack_bits = nullptr, list_tiles = nullptr;
    CUfunction transfer_bits = nullptr, combine_bits = nullptr, compare_1 = nullptr, compare_4 = nullptr;
    CUfunction compare_pixels[distile::most_channels] = {};  ///< By the number of channels, from 1.
    CUfunction update_pixels_1 = nullptr, update_pixels_4 = nullptr, hand_out = nullptr;
    /** For zeros beside an operator. */
    std::unique_ptr<distile::SideStream> side;
    /** What a dense candidate of the application's writes before its active pixels are copied. */
    std::unique_ptr<distile::DeviceMemory> dense_output;
    /** The words of a mask that is made from itself. */
    std::unique_ptr<distile::DeviceMemory> operand;

    /** Before every call of a generated function, whose code is kept. In a rehearsal it loads its modules and finds its
     * kernels, but launches and allocates nothing. */
    void begin_generated(distile::LoadedCode &code, bool rehearsal);
    /** What failed in the last generated function, whose message is stored. */
    distile_status generated_status = DISTILE_OK;

    /** Loads PTX. Throws CudaFailure. */
    CUmodule load_module(const char *ptx) const;

private:
    void count_multiprocessors();
    std::string compile(const char *ptx) const;
    /** Throws unless the driver took some code; the log says more. */
    void check_code(CUresult result, const char *log) const;
    CUfunction find(CUmodule module, const char *name) const;
    void use_module(const char *ptx);
    void launch_generated(const distile_cuda_launch &launch);
    void allocate_scratch(uint64_t bytes, uint64_t *address);

    bool primary_ = false;
    int driver_version_ = 0;
    distile::CubinCache cache_{"", 0, 0};
    CUmodule mask_module_ = nullptr;
    // Of the generated function that is being called.
    bool rehearsal_ = false;
    distile::LoadedCode *code_ = nullptr;
    distile::LoadedCode::Module *module_ = nullptr;
    // One for each allocation of a generated function. Work on one stream may share it in its order.
    std::vector<std::unique_ptr<distile::DeviceMemory>> scratch_;
    size_t scratch_used_ = 0;
};

namespace distile {

/** Makes the GPU's context current in this thread. */
class CurrentContext {
public:
    explicit CurrentContext(distile_cuda &cuda) : cuda_(cuda) {
        cuda_.check(cuda_.driver.cuCtxPushCurrent(cuda_.cu), "cuCtxPushCurrent");
    }
    ~CurrentContext() {
        CUcontext popped = nullptr;
        cuda_.driver.cuCtxPopCurrent(&popped);
    }
    CurrentContext(const CurrentContext &) = delete;
    CurrentContext &operator=(const CurrentContext &) = delete;

private:
    distile_cuda &cuda_;
};

/** Runs the body of an API function with the GPU's context. */
template<typename Body> distile_status guarded_cuda(distile_cuda &cuda, const Body &body) {
    return guarded(cuda.host, [&]() -> distile_status {
        try {
            const CurrentContext current(cuda);
            return body();
        } catch (const CudaFailure &failure) {
            return failure.status;
        }
    });
}

/** Destroys an object, which may hold memory of the GPU. */
template<typename Object> void destroy_cuda(distile_cuda &cuda, Object *object) {
    CUcontext popped = nullptr;
    const bool pushed = cuda.driver.cuCtxPushCurrent(cuda.cu) == CUDA_SUCCESS;
    std::unique_ptr<Object>(object).reset();
    if (pushed) {
        cuda.driver.cuCtxPopCurrent(&popped);
    }
}

}  // namespace distile

#endif
