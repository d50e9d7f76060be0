#include "device.h"
#include "mask_ptx.h"
#include <HalideRuntime.h>
#include <algorithm>
#include <cstring>

namespace distile {

DeviceMemory::~DeviceMemory() {
    for (CUdeviceptr block : blocks_) {
        cuda_.driver.cuMemFree(block);
    }
}

void DeviceMemory::reserve(uint64_t bytes) {
    if (bytes <= bytes_) {
        return;
    }
    if (cuda_.is_capturing()) {
        throw CudaFailure{fail(cuda_.host, DISTILE_ERROR_BAD_VALUE,
                               "a graph is being captured, and memory is missing: make the same calls with the same "
                               "shapes once before the capture")};
    }
    // Twice as much as before, so that all that is kept comes to no more than what is in use.
    const uint64_t room = std::max(bytes, std::min(2 * bytes_, bytes + bytes / 2));
    blocks_.reserve(blocks_.size() + 1);
    CUdeviceptr block = 0;
    cuda_.check(cuda_.driver.cuMemAlloc(&block, room), "cuMemAlloc");
    blocks_.push_back(block);
    bytes_ = room;
    total_bytes_ += room;
}

SideStream::SideStream(distile_cuda &cuda) : cuda_(cuda) {
    try {
        cuda.check(cuda.driver.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        cuda.check(cuda.driver.cuEventCreate(&forked_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        cuda.check(cuda.driver.cuEventCreate(&ended_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    } catch (...) {
        destroy();
        throw;
    }
}

SideStream::~SideStream() {
    destroy();
}

void SideStream::destroy() const {
    if (stream_) {
        cuda_.driver.cuStreamDestroy(stream_);
    }
    for (CUevent event : {forked_, ended_}) {
        if (event) {
            cuda_.driver.cuEventDestroy(event);
        }
    }
}

void SideStream::fork() const {
    cuda_.check(cuda_.driver.cuEventRecord(forked_, cuda_.stream), "cuEventRecord");
}

void SideStream::begin() const {
    cuda_.check(cuda_.driver.cuStreamWaitEvent(stream_, forked_, 0), "cuStreamWaitEvent");
}

void SideStream::join() const {
    cuda_.check(cuda_.driver.cuEventRecord(ended_, stream_), "cuEventRecord");
    cuda_.check(cuda_.driver.cuStreamWaitEvent(cuda_.stream, ended_, 0), "cuStreamWaitEvent");
}

LoadedCode::~LoadedCode() {
    if (!modules_.empty()) {
        cuda_.driver.cuCtxSynchronize();
    }
    for (const auto &[ptx, module] : modules_) {
        cuda_.driver.cuModuleUnload(module.module);
    }
}

LoadedCode::Module &LoadedCode::module(const char *ptx) {
    auto found = modules_.find(ptx);
    if (found == modules_.end()) {
        found = modules_.emplace(ptx, Module{}).first;
        try {
            found->second.module = cuda_.load_module(ptx);
        } catch (...) {
            modules_.erase(found);
            throw;
        }
    }
    return found->second;
}

namespace {

distile_cuda &cuda_of(distile_hooks *hooks) {
    return *static_cast<distile_cuda *>(hooks);
}

/** Does what generated code asked for, of which no exception may leave. */
template<typename Body> int from_generated(distile_hooks *hooks, const Body &body) {
    distile_cuda &cuda = cuda_of(hooks);
    cuda.generated_status = guarded(cuda.host, [&]() -> distile_status {
        try {
            body(cuda);
            return DISTILE_OK;
        } catch (const CudaFailure &failure) {
            return failure.status;
        }
    });
    if (cuda.generated_status != DISTILE_OK) {
        // Generated code also reports what it was told by a hook that failed, which said more.
        cuda.host->kernel_failed = true;
    }
    return cuda.generated_status == DISTILE_OK ? 0 : halide_error_code_gpu_device_error;
}

distile_status status_of(CUresult result) {
    switch (result) {
    case CUDA_SUCCESS:
        return DISTILE_OK;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return DISTILE_ERROR_OUT_OF_DEVICE_MEMORY;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
        return DISTILE_ERROR_NO_GPU;
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
        return DISTILE_ERROR_OLD_DRIVER;
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
        return DISTILE_ERROR_UNSUPPORTED_GPU;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_DEINITIALIZED:
        return DISTILE_ERROR_DEVICE_LOST;
    default:
        return DISTILE_ERROR_KERNEL;
    }
}

}  // namespace

}  // namespace distile

using namespace distile;

distile_cuda::distile_cuda(distile_context *context, const Driver &driver)
    : distile_hooks{}, host(context), driver(driver) {
    // Scratch memory of the host, and its threads, are those of the context.
    parallel_for = [](distile_hooks *hooks, distile_task task, void *closure, int32_t count) {
        cuda_of(hooks).host->run_parallel(task, closure, count);
    };
    distile_hooks::allocate = [](distile_hooks *hooks, size_t bytes) -> void * {
        return cuda_of(hooks).host->scratch.take(bytes);
    };
    deallocate = [](distile_hooks *hooks, void *memory) { cuda_of(hooks).host->scratch.give_back(memory); };
    report = [](distile_hooks *hooks, const char *text) { cuda_of(hooks).host->report(cuda_of(hooks).host, text); };
    static const distile_cuda_hooks functions = {
        [](distile_hooks *hooks, const char *ptx, size_t) {
            return from_generated(hooks, [&](distile_cuda &cuda) { cuda.use_module(ptx); });
        },
        [](distile_hooks *hooks, const distile_cuda_launch *launch) {
            return from_generated(hooks, [&](distile_cuda &cuda) { cuda.launch_generated(*launch); });
        },
        [](distile_hooks *hooks, uint64_t bytes, uint64_t *address) {
            return from_generated(hooks, [&](distile_cuda &cuda) { cuda.allocate_scratch(bytes, address); });
        }};
    cuda = &functions;
}

distile_cuda::~distile_cuda() {
    // A context that was lost refuses all of this, but no handle is left out.
    const bool pushed = cu && driver.cuCtxPushCurrent(cu) == CUDA_SUCCESS;
    if (pushed) {
        driver.cuCtxSynchronize();
    }
    side.reset();
    scratch_.clear();
    dense_output.reset();
    operand.reset();
    if (mask_module_) {
        driver.cuModuleUnload(mask_module_);
    }
    if (pushed) {
        CUcontext popped = nullptr;
        driver.cuCtxPopCurrent(&popped);
    }
    if (primary_) {
        driver.cuDevicePrimaryCtxRelease(device);
    }
}

distile_status distile_cuda::failed(CUresult result, const char *what) const {
    const char *name = nullptr;
    driver.cuGetErrorName(result, &name);
    return fail(host, status_of(result), "the CUDA driver refused %s: %s", what, name ? name : "unknown error");
}

void distile_cuda::check(CUresult result, const char *what) const {
    if (result != CUDA_SUCCESS) {
        throw CudaFailure{failed(result, what)};
    }
}

void distile_cuda::open(const distile_cuda_options &options) {
    check(driver.cuInit(0), "cuInit");
    check(driver.cuDriverGetVersion(&driver_version_), "cuDriverGetVersion");
    if (driver_version_ < DISTILE_MASK_CUDA) {
        throw CudaFailure{fail(host, DISTILE_ERROR_OLD_DRIVER,
                               "the driver is for CUDA %d.%d, and this library was built with CUDA %d.%d",
                               driver_version_ / 1000, driver_version_ % 1000 / 10, DISTILE_MASK_CUDA / 1000,
                               DISTILE_MASK_CUDA % 1000 / 10)};
    }
    if (options.context) {
        cu = static_cast<CUcontext>(options.context);
    } else {
        int count = 0;
        check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
        if (options.device < 0 || options.device >= count) {
            throw CudaFailure{fail(host, DISTILE_ERROR_NO_GPU, "there is no GPU %d: the driver knows %d of them",
                                   options.device, count)};
        }
        check(driver.cuDeviceGet(&device, options.device), "cuDeviceGet");
        check(driver.cuDevicePrimaryCtxRetain(&cu, device), "cuDevicePrimaryCtxRetain");
        primary_ = true;
    }
    stream = static_cast<CUstream>(options.stream);
    const CurrentContext current(*this);
    check(driver.cuCtxGetDevice(&device), "cuCtxGetDevice");
    int major = 0, minor = 0;
    check(driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device), "an attribute");
    check(driver.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device), "an attribute");
    capability = 10 * major + minor;
    if (capability < DISTILE_MASK_CAPABILITY) {
        throw CudaFailure{fail(host, DISTILE_ERROR_UNSUPPORTED_GPU,
                               "the GPU has compute capability %d.%d, and this library needs %d.%d", major, minor,
                               DISTILE_MASK_CAPABILITY / 10, DISTILE_MASK_CAPABILITY % 10)};
    }
    count_multiprocessors();
    cache_ = CubinCache(options.cache_folder ? options.cache_folder : "", driver_version_, capability);
    mask_module_ = load_module(reinterpret_cast<const char *>(distile_mask_ptx));
    for (const auto &[function, name] : {std::pair(&pack_bits, "distile_pack_bits"),
                                         {&list_tiles, "distile_list_tiles"},
                                         {&transfer_bits, "distile_transfer_bits"},
                                         {&combine_bits, "distile_combine_bits"},
                                         {&compare_1, "distile_compare_1"},
                                         {&compare_4, "distile_compare_4"},
                                         {&compare_pixels[0], "distile_compare_pixels_1"},
                                         {&compare_pixels[1], "distile_compare_pixels_2"},
                                         {&compare_pixels[2], "distile_compare_pixels_3"},
                                         {&compare_pixels[3], "distile_compare_pixels_4"},
                                         {&update_pixels_1, "distile_update_pixels_1"},
                                         {&update_pixels_4, "distile_update_pixels_4"},
                                         {&hand_out, "distile_hand_out"}}) {
        *function = find(mask_module_, name);
    }
    side = std::make_unique<SideStream>(*this);
    dense_output = std::make_unique<DeviceMemory>(*this);
    operand = std::make_unique<DeviceMemory>(*this);
}

void distile_cuda::count_multiprocessors() {
    check(driver.cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
          "an attribute");
#ifdef DISTILE_CUDA_RESOURCES
    // A green context has fewer. Where the driver cannot say, it made no such context.
    CUdevResource resource{};
    if (driver.cuCtxGetDevResource &&
        driver.cuCtxGetDevResource(cu, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS && resource.sm.smCount > 0) {
        multiprocessors = static_cast<int32_t>(resource.sm.smCount);
    }
#endif
}

bool distile_cuda::is_capturing() const {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    check(driver.cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void distile_cuda::check_pointer(const void *pointer, const char *call, const char *name) const {
    const auto address = reinterpret_cast<CUdeviceptr>(pointer);
    unsigned int type = 0;
    int ordinal = 0;
    CUresult result = driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (result == CUDA_SUCCESS) {
        result = driver.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    }
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE) {
        throw CudaFailure{failed(result, "cuPointerGetAttribute")};
    }
    if (result != CUDA_SUCCESS || type != CU_MEMORYTYPE_DEVICE || ordinal != device) {
        throw CudaFailure{fail(host, DISTILE_ERROR_NOT_DEVICE_MEMORY, "%s: the %s is not in the memory of GPU %d", call,
                               name, static_cast<int>(device))};
    }
}

CUfunction distile_cuda::find(CUmodule module, const char *name) const {
    CUfunction function = nullptr;
    check(driver.cuModuleGetFunction(&function, module, name), "cuModuleGetFunction");
    // Asking for anything of it also loads it, which a driver may otherwise put off until the first launch.
    int registers = 0;
    check(driver.cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function), "cuFuncGetAttribute");
    return function;
}

void distile_cuda::check_code(CUresult result, const char *log) const {
    if (result != CUDA_SUCCESS) {
        const char *name = nullptr;
        driver.cuGetErrorName(result, &name);
        throw CudaFailure{fail(host, status_of(result),
                               "a driver for CUDA %d.%d and a GPU of compute capability %d.%d refused the code: %s %s",
                               driver_version_ / 1000, driver_version_ % 1000 / 10, capability / 10, capability % 10,
                               name ? name : "unknown error", log)};
    }
}

std::string distile_cuda::compile(const char *ptx) const {
    char log[256] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, reinterpret_cast<void *>(sizeof(log))};
    CUlinkState state = nullptr;
    check(driver.cuLinkCreate(2, options, values, &state), "cuLinkCreate");
    const auto destroy = [this](CUlinkState linker) { driver.cuLinkDestroy(linker); };
    const std::unique_ptr<std::remove_pointer_t<CUlinkState>, decltype(destroy)> linker(state, destroy);
    void *cubin = nullptr;
    size_t bytes = 0;
    CUresult result = driver.cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char *>(ptx), std::strlen(ptx) + 1,
                                           "distile", 0, nullptr, nullptr);
    if (result == CUDA_SUCCESS) {
        result = driver.cuLinkComplete(state, &cubin, &bytes);
    }
    check_code(result, log);
    // The linker owns it.
    return {static_cast<const char *>(cubin), bytes};
}

CUmodule distile_cuda::load_module(const char *ptx) const {
    CUmodule module = nullptr;
    if (!cache_.is_on()) {
        // The driver keeps what it compiles here in a cache of its own.
        check_code(driver.cuModuleLoadData(&module, ptx), "");
        return module;
    }
    const std::string kept = cache_.find(ptx);
    if (kept.empty() || driver.cuModuleLoadData(&module, kept.data()) != CUDA_SUCCESS) {
        const std::string cubin = compile(ptx);
        // Before it is loaded: what is loaded and then forgotten would stay.
        cache_.keep(ptx, cubin);
        check_code(driver.cuModuleLoadData(&module, cubin.data()), "");
    }
    return module;
}

void distile_cuda::begin_generated(LoadedCode &code, bool rehearsal) {
    code_ = &code;
    module_ = nullptr;
    rehearsal_ = rehearsal;
    scratch_used_ = 0;
    generated_status = DISTILE_OK;
    host->kernel_failed = false;
}

void distile_cuda::use_module(const char *ptx) {
    module_ = &code_->module(ptx);
}

void distile_cuda::launch_generated(const distile_cuda_launch &launch) {
    CUfunction function = nullptr;
    for (const auto &[name, known] : module_->functions) {
        if (name == launch.kernel) {
            function = known;
        }
    }
    if (!function) {
        function = find(module_->module, launch.kernel);
        module_->functions.emplace_back(launch.kernel, function);
    }
    // Nothing to do is no launch; CUDA would call it an error.
    if (rehearsal_ || launch.blocks[0] == 0 || launch.blocks[1] == 0 || launch.blocks[2] == 0) {
        return;
    }
    check(driver.cuLaunchKernel(function, static_cast<unsigned>(launch.blocks[0]),
                                static_cast<unsigned>(launch.blocks[1]), static_cast<unsigned>(launch.blocks[2]),
                                static_cast<unsigned>(launch.threads[0]), static_cast<unsigned>(launch.threads[1]),
                                static_cast<unsigned>(launch.threads[2]), static_cast<unsigned>(launch.shared_bytes),
                                stream, launch.arguments, nullptr),
          "cuLaunchKernel");
}

void distile_cuda::allocate_scratch(uint64_t bytes, uint64_t *address) {
    if (rehearsal_) {
        // Nothing will read it, but null would mean that there is none.
        *address = 256;
        return;
    }
    if (scratch_used_ == scratch_.size()) {
        scratch_.push_back(std::make_unique<DeviceMemory>(*this));
    }
    DeviceMemory &memory = *scratch_[scratch_used_];
    memory.reserve(bytes);
    scratch_used_++;
    *address = memory.address();
}

extern "C" {

distile_status distile_cuda_create(distile_context *context, const distile_cuda_options *options, distile_cuda **cuda) {
    if (!context) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (!cuda) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "distile_cuda_create: the address for the GPU is null");
    }
    return guarded(context, [&]() -> distile_status {
        DriverFailure missing{};
        const Driver *driver = load_driver(missing);
        if (!driver) {
            return fail(context, missing.status, "distile_cuda_create: %s", missing.message.c_str());
        }
        auto opened = std::make_unique<distile_cuda>(context, *driver);
        try {
            opened->open(options ? *options : distile_cuda_options{});
        } catch (const CudaFailure &failure) {
            return failure.status;
        }
        *cuda = opened.release();
        return DISTILE_OK;
    });
}

void distile_cuda_destroy(distile_cuda *cuda) {
    const std::unique_ptr<distile_cuda> owned(cuda);
}

int32_t distile_cuda_multiprocessors(const distile_cuda *cuda) {
    return cuda ? cuda->multiprocessors : 0;
}

distile_status distile_cuda_set_stream(distile_cuda *cuda, void *stream) {
    if (!cuda) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    cuda->stream = static_cast<CUstream>(stream);
    return DISTILE_OK;
}

}  // extern "C"
