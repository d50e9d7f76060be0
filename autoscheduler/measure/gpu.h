/** \file
 * The CUDA driver and its memory for programs around the library: what measures it, and what tests it.
 */
#ifndef DISTILE_GPU_H
#define DISTILE_GPU_H

#include <cuda.h>
#include <dlfcn.h>
#include <stdexcept>
#include <string>
#include <vector>

namespace distile {

#define DISTILE_GPU_TEXT(text) #text
/** Calls a function of the driver by its name in cuda.h. */
#define CU(name, ...) ::distile::call_driver<decltype(&::name)>(DISTILE_GPU_TEXT(name) __VA_OPT__(, ) __VA_ARGS__)

template<typename Function, typename... Args> void call_driver(const char *name, Args... args) {
    static void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
    if (!function) {
        throw std::runtime_error(library ? std::string("the NVIDIA driver has no ") + name
                                         : "there is no NVIDIA driver: libcuda.so.1 cannot be loaded");
    }
    const CUresult result = function(args...);
    if (result != CUDA_SUCCESS) {
        throw std::runtime_error(std::string(name) + " returned " + std::to_string(result));
    }
}

/** The kernels of PTX, or of a cubin, that a program embeds. */
class Module {
public:
    explicit Module(const void *code) {
        CU(cuModuleLoadData, &module_, code);
    }
    ~Module() {
        try {
            CU(cuModuleUnload, module_);
        } catch (const std::exception &) {
            // The context may be gone.
        }
    }
    Module(const Module &) = delete;
    Module &operator=(const Module &) = delete;

    CUfunction find(const char *name) const {
        CUfunction function = nullptr;
        CU(cuModuleGetFunction, &function, module_, name);
        return function;
    }
    CUdeviceptr find_variable(const char *name) const {
        CUdeviceptr address = 0;
        size_t bytes = 0;
        CU(cuModuleGetGlobal, &address, &bytes, module_, name);
        return address;
    }

private:
    CUmodule module_ = nullptr;
};

/** A stream of a GPU's primary context, which stays retained for the memory that is used with it. */
class GpuStream {
public:
    explicit GpuStream(int gpu) {
        CUcontext popped = nullptr;
        CUdevice device = 0;
        CU(cuDeviceGet, &device, gpu);
        CU(cuDevicePrimaryCtxRetain, &context_, device);
        CU(cuCtxPushCurrent, context_);
        CU(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
        CU(cuCtxPopCurrent, &popped);
    }
    ~GpuStream() {
        try {
            CU(cuStreamDestroy, stream_);
        } catch (const std::exception &) {
            // The context may be gone.
        }
    }
    GpuStream(const GpuStream &) = delete;
    GpuStream &operator=(const GpuStream &) = delete;

    CUstream get() const {
        return stream_;
    }
    CUcontext context() const {
        return context_;
    }

private:
    CUcontext context_ = nullptr;
    CUstream stream_ = nullptr;
};

/** An array on the device. */
template<typename T> class DeviceArray {
public:
    explicit DeviceArray(size_t count) : count_(count) {
        CU(cuMemAlloc, &address_, count * sizeof(T));
    }
    explicit DeviceArray(const std::vector<T> &values) : DeviceArray(values.size()) {
        set(values);
    }
    ~DeviceArray() {
        try {
            CU(cuMemFree, address_);
        } catch (const std::exception &) {
            // The context may have been lost on purpose.
        }
    }
    DeviceArray(const DeviceArray &) = delete;
    DeviceArray &operator=(const DeviceArray &) = delete;

    void set(const std::vector<T> &values) {
        CU(cuMemcpyHtoD, address_, static_cast<const void *>(values.data()), values.size() * sizeof(T));
        CU(cuCtxSynchronize);
    }
    std::vector<T> get() const {
        std::vector<T> values(count_);
        CU(cuCtxSynchronize);
        CU(cuMemcpyDtoH, static_cast<void *>(values.data()), address_, count_ * sizeof(T));
        return values;
    }
    T *data() const {
        return reinterpret_cast<T *>(address_);
    }

private:
    size_t count_;
    CUdeviceptr address_ = 0;
};

template<typename T> std::vector<T> read_device(const T *from, size_t count) {
    std::vector<T> values(count);
    CU(cuCtxSynchronize);
    if (count > 0) {
        CU(cuMemcpyDtoH, static_cast<void *>(values.data()), reinterpret_cast<CUdeviceptr>(from), count * sizeof(T));
    }
    return values;
}

/** Returns when the device has the values: a copy from pageable memory may end before they have arrived, and streams
 * that do not wait for the default stream would overtake them. */
template<typename T> void write_device(T *to, const std::vector<T> &values) {
    CU(cuMemcpyHtoD, reinterpret_cast<CUdeviceptr>(to), static_cast<const void *>(values.data()),
       values.size() * sizeof(T));
    CU(cuCtxSynchronize);
}

}  // namespace distile

#endif
