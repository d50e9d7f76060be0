// A driver without a GPU, built as libcuda.so.1.
#include "fake_driver.h"
#include <chrono>
#include <cstring>
#include <cuda.h>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

/** By name. Once a name is there nothing is allocated, because tests count what the program allocates. */
template<typename Value> struct Table : std::map<std::string, Value, std::less<>> {
    using Map = std::map<std::string, Value, std::less<>>;
    using Map::Map;

    Value &operator[](const char *name) {
        const auto found = this->find(name);
        return found != this->end() ? found->second : Map::operator[](name);
    }
};

struct Fake {
    Table<int64_t> settings{{"version", CUDA_VERSION},
                            {"major", 9},
                            {"minor", 0},
                            {"devices", 1},
                            {"green", 132},
                            {"multiprocessors", 132},
                            {"memory", int64_t{1} << 36}};
    Table<int> failures;
    Table<int64_t> calls;
    std::map<CUdeviceptr, size_t> memory;
    std::map<void *, std::vector<uint32_t>> host;
    int64_t used = 0, objects = 0, contexts = 0, next = 1;
    std::string linked;
};

Fake &fake() {
    static Fake state;
    return state;
}

CUresult enter(const char *function, bool forbidden_in_capture = false) {
    fake().calls[function]++;
    if (forbidden_in_capture && fake().settings["capturing"] != 0) {
        fake().calls["forbidden"]++;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    for (const char *name : {function, "*"}) {
        const auto found = fake().failures.find(name);
        if (found != fake().failures.end() && found->second != 0) {
            return static_cast<CUresult>(found->second);
        }
    }
    return CUDA_SUCCESS;
}

template<typename Handle> CUresult make(const char *function, Handle *handle, bool forbidden_in_capture = false) {
    const CUresult result = enter(function, forbidden_in_capture);
    if (result == CUDA_SUCCESS) {
        fake().objects++;
        *handle = reinterpret_cast<Handle>(static_cast<uintptr_t>(fake().next++));
    }
    return result;
}

// What a lost context holds is gone too, so destroying it always ends it.
CUresult end(const char *function) {
    fake().objects--;
    return enter(function);
}

}  // namespace

extern "C" {

void fake_driver_set(const char *what, int64_t value) {
    fake().settings[what] = value;
}

void fake_driver_fail(const char *function, int result) {
    fake().failures[function] = result;
}

int64_t fake_driver_count(const char *what) {
    if (std::strcmp(what, "alive") == 0) {
        return fake().objects + fake().contexts + static_cast<int64_t>(fake().memory.size());
    }
    return fake().calls[what];
}

CUresult cuInit(unsigned int) {
    return enter("cuInit");
}

CUresult cuDriverGetVersion(int *version) {
    *version = static_cast<int>(fake().settings["version"]);
    return enter("cuDriverGetVersion");
}

CUresult cuDeviceGetCount(int *count) {
    *count = static_cast<int>(fake().settings["devices"]);
    return enter("cuDeviceGetCount");
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return enter("cuDeviceGet");
}

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice) {
    const char *name = attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? "major"
                       : attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? "minor"
                                                                                : "multiprocessors";
    *pi = static_cast<int>(fake().settings[name]);
    return enter("cuDeviceGetAttribute");
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice) {
    return make("cuDevicePrimaryCtxRetain", pctx);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) {
    return end("cuDevicePrimaryCtxRelease");
}

CUresult cuCtxPushCurrent(CUcontext) {
    const CUresult result = enter("cuCtxPushCurrent");
    fake().contexts += result == CUDA_SUCCESS ? 1 : 0;
    return result;
}

CUresult cuCtxPopCurrent(CUcontext *) {
    fake().contexts--;
    return enter("cuCtxPopCurrent");
}

CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return enter("cuCtxGetDevice");
}

#if CUDA_VERSION >= 12040
CUresult cuCtxGetDevResource(CUcontext, CUdevResource *resource, CUdevResourceType) {
    resource->sm.smCount = static_cast<unsigned int>(fake().settings["green"]);
    return enter("cuCtxGetDevResource");
}
#endif

CUresult cuCtxSynchronize() {
    return enter("cuCtxSynchronize", true);
}

CUresult cuStreamCreate(CUstream *stream, unsigned int) {
    return make("cuStreamCreate", stream);
}

CUresult cuStreamDestroy(CUstream) {
    return end("cuStreamDestroy");
}

CUresult cuStreamSynchronize(CUstream) {
    std::this_thread::sleep_for(std::chrono::microseconds(fake().settings["wait"]));
    return enter("cuStreamSynchronize", true);
}

CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus *status) {
    *status = fake().settings["capturing"] != 0 ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return enter("cuStreamIsCapturing");
}

CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int) {
    return enter("cuStreamWaitEvent");
}

CUresult cuEventCreate(CUevent *event, unsigned int) {
    return make("cuEventCreate", event);
}

CUresult cuEventDestroy(CUevent) {
    return end("cuEventDestroy");
}

CUresult cuEventRecord(CUevent, CUstream) {
    return enter("cuEventRecord");
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    const auto *text = static_cast<const char *>(image);
    if (!std::strstr(text, ".version") && std::strncmp(text, "cubin", 5) != 0) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    return make("cuModuleLoadData", module, true);
}

CUresult cuModuleUnload(CUmodule) {
    return end("cuModuleUnload");
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule, const char *) {
    *hfunc = reinterpret_cast<CUfunction>(static_cast<uintptr_t>(fake().next++));
    return enter("cuModuleGetFunction");
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute, CUfunction) {
    *pi = 32;
    return enter("cuFuncGetAttribute");
}

CUresult cuLinkCreate(unsigned int, CUjit_option *, void **, CUlinkState *state) {
    return make("cuLinkCreate", state);
}

CUresult cuLinkAddData(CUlinkState, CUjitInputType, void *data, size_t bytes, const char *, unsigned int,
                       CUjit_option *, void **) {
    fake().linked = "cubin " + std::to_string(bytes + static_cast<const char *>(data)[0]);
    return enter("cuLinkAddData");
}

CUresult cuLinkComplete(CUlinkState, void **cubinOut, size_t *sizeOut) {
    *cubinOut = fake().linked.data();
    *sizeOut = fake().linked.size() + 1;
    return enter("cuLinkComplete");
}

CUresult cuLinkDestroy(CUlinkState) {
    return end("cuLinkDestroy");
}

CUresult cuLaunchKernel(CUfunction function, unsigned int x, unsigned int y, unsigned int z, unsigned int, unsigned int,
                        unsigned int, unsigned int, CUstream, void **, void **) {
    const CUresult result = enter("cuLaunchKernel");
    return result == CUDA_SUCCESS && (!function || x == 0 || y == 0 || z == 0) ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
    const CUresult result = enter("cuMemAlloc", true);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (fake().used + static_cast<int64_t>(bytes) > fake().settings["memory"]) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    // Nobody reads or writes it.
    *address = static_cast<CUdeviceptr>(fake().next++) << 36;
    fake().memory[*address] = bytes;
    fake().used += static_cast<int64_t>(bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
    const auto found = fake().memory.find(address);
    if (found == fake().memory.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake().used -= static_cast<int64_t>(found->second);
    fake().memory.erase(found);
    return enter("cuMemFree");
}

CUresult cuMemAllocHost(void **address, size_t bytes) {
    const CUresult result = enter("cuMemAllocHost", true);
    if (result == CUDA_SUCCESS) {
        std::vector<uint32_t> block(bytes / sizeof(uint32_t) + 1);
        *address = block.data();
        fake().host.emplace(*address, std::move(block));
        fake().objects++;
    }
    return result;
}

CUresult cuMemFreeHost(void *p) {
    fake().host.erase(p);
    return end("cuMemFreeHost");
}

CUresult cuMemcpyHtoD(CUdeviceptr, const void *, size_t) {
    return enter("cuMemcpyHtoD", true);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr, size_t bytes, CUstream) {
    for (size_t i = 0; i < bytes / sizeof(uint32_t); i++) {
        static_cast<uint32_t *>(to)[i] = static_cast<uint32_t>(fake().settings["count"]);
    }
    return enter("cuMemcpyDtoHAsync");
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream) {
    return enter("cuMemcpyDtoDAsync");
}

CUresult cuMemsetD8(CUdeviceptr, unsigned char, size_t) {
    return enter("cuMemsetD8", true);
}

CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream) {
    return enter("cuMemsetD8Async");
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    const CUresult result = enter("cuPointerGetAttribute");
    if (result != CUDA_SUCCESS) {
        return result;
    }
    auto found = fake().memory.upper_bound(ptr);
    if (found == fake().memory.begin() || ptr - (--found)->first >= found->second) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto number = attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? static_cast<int>(CU_MEMORYTYPE_DEVICE)
                                                                      : static_cast<int>(fake().settings["ordinal"]);
    std::memcpy(data, &number, sizeof(number));
    return CUDA_SUCCESS;
}

#ifndef DISTILE_FAKE_OLD
CUresult cuGetErrorName(CUresult, const char **pStr) {
    *pStr = "CUDA_ERROR_OF_THE_FAKE";
    return CUDA_SUCCESS;
}
#endif

}  // extern "C"
