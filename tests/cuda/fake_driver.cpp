// A driver without a GPU, built as libcuda.so.1.
#include "tests/cuda/fake_driver.h"
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <thread>

namespace {

/** Past the allocation functions of the program, because tests count what it allocates, and let that fail. */
template<typename T> struct Malloc {
    using value_type = T;

    Malloc() = default;
    template<typename Other> explicit Malloc(const Malloc<Other> &) {
    }
    T *allocate(size_t count) {
        return static_cast<T *>(std::malloc(count * sizeof(T)));
    }
    void deallocate(T *memory, size_t) {
        std::free(memory);
    }
    friend bool operator==(const Malloc &, const Malloc &) {
        return true;
    }
    friend bool operator!=(const Malloc &, const Malloc &) {
        return false;
    }
};

template<typename Key, typename Value> using Map =
    std::map<Key, Value, std::less<>, Malloc<std::pair<const Key, Value>>>;
using Name = std::basic_string<char, std::char_traits<char>, Malloc<char>>;

/** Launches on a stream of the library's own, and how many of them what comes next on the caller's stream is behind. */
struct SideStream {
    int64_t launches, joined;
};

/** What was on a stream when an event was recorded. */
struct Event {
    CUstream stream;
    int64_t launches;
};

struct Fake {
    Map<Name, int64_t> settings{{"version", CUDA_VERSION},
                                {"major", 9},
                                {"minor", 0},
                                {"devices", 1},
                                {"peers", 1},
                                {"green", 132},
                                {"multiprocessors", 132},
                                {"memory", int64_t{1} << 36}};
    Map<Name, int> failures;
    Map<Name, int64_t> calls;
    int64_t calls_until_failure = -1;
    int once = 0;
    Map<CUdeviceptr, size_t> memory;
    Map<CUstream, SideStream> streams;
    Map<CUevent, Event> events;
    Map<CUfunction, unsigned int> shared_bytes;  ///< What a function may have, if it is more than the default.
    int64_t used = 0, objects = 0, contexts = 0, next = 1;
    char linked[64] = "";
};

Fake &fake() {
    static Fake state;
    return state;
}

/** Threads call the driver one at a time. */
class Locked {
public:
    Locked() : lock_(mutex()) {
    }

private:
    static std::recursive_mutex &mutex() {
        static std::recursive_mutex of_driver;
        return of_driver;
    }

    std::lock_guard<std::recursive_mutex> lock_;
};

CUresult result_of(const char *function) {
    if (fake().calls_until_failure >= 0 && fake().calls_until_failure-- == 0) {
        return static_cast<CUresult>(fake().once);
    }
    for (const char *name : {function, "*"}) {
        const auto found = fake().failures.find(name);
        if (found != fake().failures.end() && found->second != 0) {
            return static_cast<CUresult>(found->second);
        }
    }
    return CUDA_SUCCESS;
}

CUresult enter(const char *function, bool forbidden_in_capture = false) {
    fake().calls[function]++;
    fake().calls["*"]++;
    if (forbidden_in_capture && fake().settings["capturing"] != 0) {
        fake().calls["forbidden"]++;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    const CUresult result = result_of(function);
    fake().calls["failed"] += result != CUDA_SUCCESS ? 1 : 0;
    return result;
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

/** Blocks above this are addresses without memory, and nothing is done to them. */
constexpr size_t most_bytes = size_t{1} << 24;

/** Addresses of a block: more than it has, because tests have tensors that are larger than their memory. */
size_t room_of(size_t bytes) {
    return bytes + (size_t{1} << 34);
}

/** Where an address is in memory that there is. */
void *memory_at(CUdeviceptr address, size_t bytes) {
    auto found = fake().memory.upper_bound(address);
    const bool known = found != fake().memory.begin() && (--found)->second <= most_bytes;
    return known && bytes <= most_bytes ? reinterpret_cast<void *>(address) : nullptr;
}

CUresult copy(const char *function, void *to, const void *from, size_t bytes, bool forbidden_in_capture = false) {
    const CUresult result = enter(function, forbidden_in_capture);
    if (result == CUDA_SUCCESS && to && from) {
        std::memcpy(to, from, bytes);
    }
    return result;
}

CUresult fill(const char *function, CUdeviceptr address, int value, size_t bytes, bool forbidden_in_capture = false) {
    const CUresult result = enter(function, forbidden_in_capture);
    void *memory = memory_at(address, bytes);
    if (result == CUDA_SUCCESS && memory) {
        std::memset(memory, value, bytes);
    }
    return result;
}

/** A launch after its function was entered. */
CUresult launch(CUresult result, CUfunction function, const CUlaunchConfig &config) {
    fake().calls["launches"]++;
    unsigned int cluster = 1;
    bool early = false;
    for (unsigned int i = 0; i < config.numAttrs; i++) {
        const CUlaunchAttribute &attribute = config.attrs[i];
        if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            cluster = attribute.value.clusterDim.x * attribute.value.clusterDim.y * attribute.value.clusterDim.z;
        } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
            early = attribute.value.programmaticStreamSerializationAllowed != 0;
        } else {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    constexpr unsigned int default_shared_bytes = 48 << 10;
    const auto allowed = fake().shared_bytes.find(function);
    const int64_t blocks = int64_t{config.gridDimX} * config.gridDimY * config.gridDimZ;
    const int64_t threads = int64_t{config.blockDimX} * config.blockDimY * config.blockDimZ;
    if (!function || blocks == 0 || threads == 0 || cluster == 0 || config.gridDimX % cluster != 0 ||
        config.sharedMemBytes > (allowed == fake().shared_bytes.end() ? default_shared_bytes : allowed->second)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (config.hStream) {
        fake().streams[config.hStream].launches++;
    }
    fake().calls["cluster"] = cluster;
    fake().calls["early"] = early ? 1 : 0;
    fake().calls["blocks"] = blocks;
    fake().calls["shared"] = config.sharedMemBytes;
    return CUDA_SUCCESS;
}

int64_t occurrences(const char *text, const char *word) {
    int64_t count = 0;
    for (const char *at = std::strstr(text, word); at; at = std::strstr(at + 1, word)) {
        count++;
    }
    return count;
}

/** The host waited for a stream. */
void finish(CUstream stream) {
    const auto found = fake().streams.find(stream);
    if (found != fake().streams.end()) {
        found->second.joined = found->second.launches;
    }
}

}  // namespace

extern "C" {

void fake_driver_set(const char *what, int64_t value) {
    fake().settings[what] = value;
}

void fake_driver_fail(const char *function, int result) {
    fake().failures[function] = result;
}

void fake_driver_fail_once(int64_t calls, int result) {
    fake().calls_until_failure = calls;
    fake().once = result;
}

int64_t fake_driver_count(const char *what) {
    if (std::strcmp(what, "alive") == 0) {
        return fake().objects + fake().contexts + static_cast<int64_t>(fake().memory.size());
    }
    if (std::strcmp(what, "beside") == 0) {
        int64_t launches = 0;
        for (const auto &[stream, side] : fake().streams) {
            launches += side.launches - side.joined;
        }
        return launches;
    }
    return fake().calls[what];
}

CUresult cuInit(unsigned int) {
    const Locked locked;
    return enter("cuInit");
}

CUresult cuDriverGetVersion(int *version) {
    const Locked locked;
    *version = static_cast<int>(fake().settings["version"]);
    return enter("cuDriverGetVersion");
}

CUresult cuDeviceGetCount(int *count) {
    const Locked locked;
    *count = static_cast<int>(fake().settings["devices"]);
    return enter("cuDeviceGetCount");
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    const Locked locked;
    *device = ordinal;
    return enter("cuDeviceGet");
}

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice) {
    const Locked locked;
    const char *name = attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? "major"
                       : attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? "minor"
                                                                                : "multiprocessors";
    *pi = static_cast<int>(fake().settings[name]);
    return enter("cuDeviceGetAttribute");
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    const Locked locked;
    const CUresult result = make("cuDevicePrimaryCtxRetain", pctx);
    if (result == CUDA_SUCCESS) {
        // There is one of a device, however often it is retained.
        *pctx = reinterpret_cast<CUcontext>(uintptr_t{1} << 40 | static_cast<uintptr_t>(dev));
    }
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) {
    const Locked locked;
    return end("cuDevicePrimaryCtxRelease");
}

CUresult cuCtxPushCurrent(CUcontext) {
    const Locked locked;
    const CUresult result = enter("cuCtxPushCurrent");
    fake().contexts += result == CUDA_SUCCESS ? 1 : 0;
    return result;
}

CUresult cuCtxPopCurrent(CUcontext *) {
    const Locked locked;
    fake().contexts--;
    return enter("cuCtxPopCurrent");
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice, CUdevice) {
    const Locked locked;
    *canAccessPeer = static_cast<int>(fake().settings["peers"]);
    return enter("cuDeviceCanAccessPeer");
}

CUresult cuCtxEnablePeerAccess(CUcontext, unsigned int) {
    const Locked locked;
    return enter("cuCtxEnablePeerAccess");
}

CUresult cuCtxGetDevice(CUdevice *device) {
    const Locked locked;
    *device = 0;
    return enter("cuCtxGetDevice");
}

#if CUDA_VERSION >= 12040
CUresult cuCtxGetDevResource(CUcontext, CUdevResource *resource, CUdevResourceType) {
    const Locked locked;
    resource->sm.smCount = static_cast<unsigned int>(fake().settings["green"]);
    return enter("cuCtxGetDevResource");
}
#endif

#if CUDA_VERSION >= 12080
CUresult cuGraphCreate(CUgraph *graph, unsigned int) {
    const Locked locked;
    return make("cuGraphCreate", graph);
}

CUresult cuGraphDestroy(CUgraph) {
    const Locked locked;
    return end("cuGraphDestroy");
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *pHandle_out, CUgraph, CUcontext, unsigned int,
                                        unsigned int) {
    const Locked locked;
    *pHandle_out = 1;
    return enter("cuGraphConditionalHandleCreate");
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t,
                        CUgraphNodeParams *params) {
    const Locked locked;
    // A branching node owns the graphs that it may run.
    constexpr unsigned int most_branches = 8;
    static CUgraph branches[most_branches];
    const CUresult result = enter("cuGraphAddNode");
    if (result == CUDA_SUCCESS) {
        *node = reinterpret_cast<CUgraphNode>(static_cast<uintptr_t>(fake().next++));
        if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL && params->conditional.size <= most_branches) {
            params->conditional.phGraph_out = branches;
        }
    }
    return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph, unsigned long long) {
    const Locked locked;
    return make("cuGraphInstantiateWithFlags", phGraphExec);
}

CUresult cuGraphExecDestroy(CUgraphExec) {
    const Locked locked;
    return end("cuGraphExecDestroy");
}

CUresult cuGraphLaunch(CUgraphExec, CUstream) {
    const Locked locked;
    return enter("cuGraphLaunch");
}
#endif

CUresult cuCtxSynchronize() {
    const Locked locked;
    const CUresult result = enter("cuCtxSynchronize", true);
    for (auto &[stream, side] : fake().streams) {
        side.joined = result == CUDA_SUCCESS ? side.launches : side.joined;
    }
    return result;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int) {
    const Locked locked;
    return make("cuStreamCreate", stream);
}

CUresult cuStreamDestroy(CUstream stream) {
    const Locked locked;
    fake().streams.erase(stream);
    return end("cuStreamDestroy");
}

CUresult cuStreamSynchronize(CUstream stream) {
    const Locked locked;
    std::this_thread::sleep_for(std::chrono::microseconds(fake().settings["wait"]));
    const CUresult result = enter("cuStreamSynchronize", true);
    if (result == CUDA_SUCCESS) {
        finish(stream);
    }
    return result;
}

CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus *status) {
    const Locked locked;
    *status = fake().settings["capturing"] != 0 ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return enter("cuStreamIsCapturing");
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
    const Locked locked;
    const CUresult result = enter("cuStreamWaitEvent");
    const auto recorded = fake().events.find(event);
    const auto side =
        recorded == fake().events.end() ? fake().streams.end() : fake().streams.find(recorded->second.stream);
    if (result == CUDA_SUCCESS && !stream && side != fake().streams.end()) {
        side->second.joined = recorded->second.launches;
    }
    return result;
}

CUresult cuEventCreate(CUevent *event, unsigned int) {
    const Locked locked;
    return make("cuEventCreate", event);
}

CUresult cuEventDestroy(CUevent event) {
    const Locked locked;
    fake().events.erase(event);
    return end("cuEventDestroy");
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    const Locked locked;
    const CUresult result = enter("cuEventRecord");
    if (result == CUDA_SUCCESS) {
        fake().events[event] = {stream, stream ? fake().streams[stream].launches : 0};
    }
    return result;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    const Locked locked;
    const auto *text = static_cast<const char *>(image);
    const bool is_cubin = std::strncmp(text, "\177ELF", 4) == 0 || std::strncmp(text, "cubin", 5) == 0;
    if (!is_cubin && !std::strstr(text, ".version")) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    const int64_t waits = is_cubin ? 0 : occurrences(text, "griddepcontrol.wait");
    if (waits > 0) {
        fake().calls["waits"] += waits;
        fake().calls["waiting"] += occurrences(text, ".entry");
    }
    return make("cuModuleLoadData", module, true);
}

CUresult cuModuleUnload(CUmodule) {
    const Locked locked;
    return end("cuModuleUnload");
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule, const char *) {
    const Locked locked;
    *hfunc = reinterpret_cast<CUfunction>(static_cast<uintptr_t>(fake().next++));
    return enter("cuModuleGetFunction");
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute, CUfunction) {
    const Locked locked;
    *pi = 32;
    return enter("cuFuncGetAttribute");
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
    const Locked locked;
    const CUresult result = enter("cuFuncSetAttribute");
    if (result == CUDA_SUCCESS && attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        fake().shared_bytes[hfunc] = static_cast<unsigned int>(value);
    }
    return result;
}

CUresult cuLinkCreate(unsigned int, CUjit_option *, void **, CUlinkState *state) {
    const Locked locked;
    return make("cuLinkCreate", state);
}

CUresult cuLinkAddData(CUlinkState, CUjitInputType, void *data, size_t bytes, const char *, unsigned int,
                       CUjit_option *, void **) {
    const Locked locked;
    std::snprintf(fake().linked, sizeof(fake().linked), "cubin %zu", bytes + static_cast<const char *>(data)[0]);
    return enter("cuLinkAddData");
}

CUresult cuLinkComplete(CUlinkState, void **cubinOut, size_t *sizeOut) {
    const Locked locked;
    *cubinOut = fake().linked;
    *sizeOut = std::strlen(fake().linked) + 1;
    return enter("cuLinkComplete");
}

CUresult cuLinkDestroy(CUlinkState) {
    const Locked locked;
    return end("cuLinkDestroy");
}

CUresult cuLaunchKernel(CUfunction function, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                        unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                        unsigned int sharedMemBytes, CUstream stream, void **, void **) {
    const Locked locked;
    return launch(enter("cuLaunchKernel"), function,
                  {gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, stream, nullptr, 0});
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **, void **) {
    const Locked locked;
    return launch(enter("cuLaunchKernelEx"), function, *config);
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
    const Locked locked;
    const CUresult result = enter("cuMemAlloc", true);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (fake().used + static_cast<int64_t>(bytes) > fake().settings["memory"]) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    void *block = mmap(nullptr, room_of(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (bytes <= most_bytes && mprotect(block, bytes, PROT_READ | PROT_WRITE) == 0) {
        // These bytes are of no use before others are written.
        std::memset(block, 0xa5, bytes);
    }
    *address = reinterpret_cast<CUdeviceptr>(block);
    fake().memory[*address] = bytes;
    fake().used += static_cast<int64_t>(bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
    const Locked locked;
    const auto found = fake().memory.find(address);
    if (found == fake().memory.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake().used -= static_cast<int64_t>(found->second);
    munmap(reinterpret_cast<void *>(address), room_of(found->second));
    fake().memory.erase(found);
    return enter("cuMemFree");
}

CUresult cuMemAllocHost(void **address, size_t bytes) {
    const Locked locked;
    const CUresult result = enter("cuMemAllocHost", true);
    if (result == CUDA_SUCCESS) {
        *address = std::malloc(bytes);
        fake().objects++;
    }
    return result;
}

CUresult cuMemFreeHost(void *p) {
    const Locked locked;
    std::free(p);
    return end("cuMemFreeHost");
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
    const Locked locked;
    return copy("cuMemcpyHtoD", memory_at(to, bytes), from, bytes, true);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr, size_t bytes, CUstream) {
    const Locked locked;
    for (size_t i = 0; i < bytes / sizeof(uint32_t); i++) {
        static_cast<uint32_t *>(to)[i] = static_cast<uint32_t>(fake().settings["count"]);
    }
    return enter("cuMemcpyDtoHAsync");
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
    const Locked locked;
    return copy("cuMemcpyDtoDAsync", memory_at(to, bytes), memory_at(from, bytes), bytes);
}

CUresult cuMemsetD8(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
    const Locked locked;
    return fill("cuMemsetD8", dstDevice, uc, N, true);
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream) {
    const Locked locked;
    return fill("cuMemsetD8Async", dstDevice, uc, N);
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    const Locked locked;
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

CUresult cuOccupancyMaxActiveClusters(int *numClusters, CUfunction, const CUlaunchConfig *config) {
    const Locked locked;
    const CUresult result = enter("cuOccupancyMaxActiveClusters");
    if (result == CUDA_SUCCESS) {
        // A chip of parts with 16 multiprocessors each has no room for clusters in the last 4.
        *numClusters = 128 / static_cast<int>(config->attrs[0].value.clusterDim.x);
    }
    return result;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *tensorMap, CUtensorMapDataType, cuuint32_t tensorRank, void *globalAddress,
                                const cuuint64_t *globalDim, const cuuint64_t *globalStrides, const cuuint32_t *boxDim,
                                const cuuint32_t *elementStrides, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    const Locked locked;
    const CUresult result = enter("cuTensorMapEncodeTiled");
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool legal =
        reinterpret_cast<uintptr_t>(globalAddress) % 16 == 0 && reinterpret_cast<uintptr_t>(tensorMap) % 64 == 0;
    for (cuuint32_t i = 0; i < tensorRank; i++) {
        legal = legal && globalDim[i] > 0 && boxDim[i] > 0 && boxDim[i] <= 256 && elementStrides[i] > 0 &&
                elementStrides[i] <= 8 && (i + 1 == tensorRank || (globalStrides[i] > 0 && globalStrides[i] % 16 == 0));
    }
    return legal ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#ifndef DISTILE_FAKE_OLD
CUresult cuGetErrorName(CUresult, const char **pStr) {
    const Locked locked;
    *pStr = "CUDA_ERROR_OF_THE_FAKE";
    return CUDA_SUCCESS;
}
#endif

}  // extern "C"
