#include "runtime/cuda/cuda_device.h"
#include "kernels/call.h"
#include "runtime/base/types.h"
#include "runtime/cuda/code_runner.h"
#include "runtime/cuda/cuda_chooser.h"
#include "runtime/cuda/cuda_mask.h"
#include "runtime/cuda/cuda_planner.h"
#include "runtime/cuda/peer_link.h"
#include "runtime/cuda/pixel_update.h"
#include "runtime/cuda/stage_runner.h"
#include "runtime/gpu/rehearsal.h"
#include "runtime/stage/stage_target.h"
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

namespace distile {

namespace {

/** GPU memory that returns to its context, which may outlive the device. */
struct UploadedMemory {
    explicit UploadedMemory(std::shared_ptr<const UsedContext> given) : context(std::move(given)) {
    }
    ~UploadedMemory() {
        if (address != 0) {
            const CurrentForCleanup current(*context);
            context->driver.cuMemFree(address);
        }
    }
    UploadedMemory(const UploadedMemory &) = delete;
    UploadedMemory &operator=(const UploadedMemory &) = delete;

    std::shared_ptr<const UsedContext> context;
    CUdeviceptr address = 0;
};

/** A grid as the driver takes it. */
class LaunchConfig {
public:
    LaunchConfig(const LaunchGrid &grid, CUstream on) {
        config_.attrs = attributes_.data();
        if (grid.cluster > 1) {
            CUlaunchAttribute &attribute = attributes_.at(config_.numAttrs++);
            attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attribute.value.clusterDim.x = grid.cluster;
            attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
        }
        if (grid.together) {
            CUlaunchAttribute &attribute = attributes_.at(config_.numAttrs++);
            attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            attribute.value.cooperative = 1;
        }
        if (grid.early) {
            CUlaunchAttribute &attribute = attributes_.at(config_.numAttrs++);
            attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attribute.value.programmaticStreamSerializationAllowed = 1;
        }
        config_.gridDimX = grid.x;
        config_.gridDimY = grid.y;
        config_.gridDimZ = grid.z;
        config_.blockDimX = grid.threads;
        config_.blockDimY = grid.threads_y;
        config_.blockDimZ = grid.threads_z;
        config_.sharedMemBytes = grid.shared_bytes;
        config_.hStream = on;
    }
    ~LaunchConfig() = default;
    // It points into itself.
    LaunchConfig(const LaunchConfig &) = delete;
    LaunchConfig &operator=(const LaunchConfig &) = delete;

    const CUlaunchConfig *get() const {
        return &config_;
    }

private:
    std::array<CUlaunchAttribute, 3> attributes_{};
    CUlaunchConfig config_{};
};

}  // namespace

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
        return DISTILE_ERROR_UNSUPPORTED_DEVICE;
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

// ---- The context -----------------------------------------------------------------------------

CudaDevice::CudaDevice(distile_context &given, const Driver &loaded) : Device(given), driver(loaded) {
    context.gpu = &CodeRunner::hooks;
}

CudaDevice::~CudaDevice() {
    if (!used_) {
        return;
    }
    const CurrentForCleanup current(*used_);
    if (current.succeeded()) {
        driver.cuCtxSynchronize();
    }
    link.reset();
    side_.reset();
    stages_.reset();
    runner.reset();
    dense_output_.reset();
    operand.reset();
    kernels.reset();
}

void CudaDevice::open(const distile_cuda_options &options) {
    check(driver.cuInit(0), "cuInit");
    check(driver.cuDriverGetVersion(&driver_version), "cuDriverGetVersion");
    if (driver_version < LibraryKernels::oldest_cuda) {
        throw Failure{fail(&context, DISTILE_ERROR_OLD_DRIVER,
                           "the driver supports CUDA %d.%d, but this library needs CUDA %d.%d", driver_version / 1000,
                           driver_version % 1000 / 10, LibraryKernels::oldest_cuda / 1000,
                           LibraryKernels::oldest_cuda % 1000 / 10)};
    }
    used_ = use_context(options);
    caller_stream = static_cast<CUstream>(options.stream);
    choose_on_device = options.choose_on_device != 0;
    // As measured in graphs of small layers: 1.6 to 4 us.
    constexpr double usual_launch_us = 2;
    context_launch_us = options.launch_us == 0 ? usual_launch_us : std::max(options.launch_us, 0.0);
    const CurrentDevice current(*this);
    find_features();
    loader.emplace(*this, CubinCache(options.cache_folder ? options.cache_folder : "", driver_version, capability));
    kernels = std::make_unique<LibraryKernels>(driver, *loader, capability);
    side_ = std::make_unique<SideStream>(*this);
    runner = std::make_unique<CodeRunner>(*this);
    dense_output_ = std::make_unique<DeviceMemory>(*this);
    operand = std::make_unique<DeviceMemory>(*this);
}

std::shared_ptr<const UsedContext> CudaDevice::use_context(const distile_cuda_options &options) const {
    if (options.context) {
        return std::make_shared<UsedContext>(driver, static_cast<CUcontext>(options.context));
    }
    int count = 0;
    check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (options.device < 0 || options.device >= count) {
        throw Failure{
            fail(&context, DISTILE_ERROR_NO_GPU, "there is no GPU %d; the driver finds %d", options.device, count)};
    }
    CUdevice device = 0;
    check(driver.cuDeviceGet(&device, options.device), "cuDeviceGet");
    // Made first, so it releases what was retained if anything fails.
    auto used = std::make_shared<UsedContext>(driver, nullptr);
    check(driver.cuDevicePrimaryCtxRetain(&used->handle, device), "cuDevicePrimaryCtxRetain");
    used->retained = device;
    return used;
}

void CudaDevice::find_features() {
    const auto attribute = [&](CUdevice_attribute which) {
        int value = 0;
        check(driver.cuDeviceGetAttribute(&value, which, device_), "cuDeviceGetAttribute");
        return value;
    };
    check(driver.cuCtxGetDevice(&device_), "cuCtxGetDevice");
    capability = 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                 attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    if (capability < LibraryKernels::oldest_capability) {
        throw Failure{fail(&context, DISTILE_ERROR_UNSUPPORTED_DEVICE,
                           "the GPU has compute capability %d.%d, but this library needs %d.%d", capability / 10,
                           capability % 10, LibraryKernels::oldest_capability / 10,
                           LibraryKernels::oldest_capability % 10)};
    }
    multiprocessors_ = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    most_shared_bytes = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
#ifdef DISTILE_CUDA_RESOURCES
    // A green context has fewer. A driver that cannot tell has no green contexts.
    CUdevResource resource{};
    if (driver.cuCtxGetDevResource &&
        driver.cuCtxGetDevResource(used_->handle, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS &&
        resource.sm.smCount > 0) {
        has_whole_gpu = static_cast<int32_t>(resource.sm.smCount) == multiprocessors_;
        multiprocessors_ = static_cast<int32_t>(resource.sm.smCount);
    }
#endif
}

void CudaDevice::enter() {
    check(driver.cuCtxPushCurrent(used_->handle), "cuCtxPushCurrent");
}

void CudaDevice::leave() noexcept {
    CUcontext popped = nullptr;
    driver.cuCtxPopCurrent(&popped);
}

bool CudaDevice::is_capturing() const {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    check(driver.cuStreamIsCapturing(caller_stream, &status), "cuStreamIsCapturing");
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// ---- Errors and checks -----------------------------------------------------------------------

const char *CudaDevice::name_of(CUresult result) const {
    const char *name = nullptr;
    driver.cuGetErrorName(result, &name);
    return name ? name : "unknown error";
}

void CudaDevice::check(CUresult result, const char *what) const {
    if (result != CUDA_SUCCESS) {
        throw Failure{fail(&context, status_of(result), "%s failed: %s", what, name_of(result))};
    }
}

void CudaDevice::refuse_capture(const char *what) const {
    if (is_capturing()) {
        throw Failure{fail(&context, DISTILE_ERROR_CAPTURING,
                           "%s during graph capture; make the same calls with the same shapes once before "
                           "the capture",
                           what)};
    }
}

bool CudaDevice::is_device_memory(const void *pointer) const {
    const auto address = reinterpret_cast<CUdeviceptr>(pointer);
    unsigned int type = 0;
    int ordinal = 0;
    CUresult result = driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (result == CUDA_SUCCESS) {
        result = driver.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    }
    if (result != CUDA_ERROR_INVALID_VALUE) {
        check(result, "cuPointerGetAttribute");
    }
    return result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE && ordinal == device_;
}

void CudaDevice::check_pointer(const void *pointer, size_t alignment, const char *name) const {
    if (!is_device_memory(pointer)) {
        throw Failure{fail(&context, DISTILE_ERROR_NOT_DEVICE_MEMORY, "the %s is not in the memory of GPU %d", name,
                           static_cast<int>(device_))};
    }
    if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
        throw Failure{
            fail(&context, DISTILE_ERROR_BAD_ALIGNMENT, "the %s is not aligned to %zu bytes", name, alignment)};
    }
}

distile_status CudaDevice::check_memory(const char *call, const distile_tensor &tensor, const char *name) const {
    if (!is_device_memory(tensor.data)) {
        return fail(&context, DISTILE_ERROR_NOT_DEVICE_MEMORY, "%s: the %s is not in the memory of GPU %d", call, name,
                    static_cast<int>(device_));
    }
    return check_alignment(context, call, tensor, name);
}

std::string CudaDevice::missing_features(const distile_polykernel &polykernel) const {
    constexpr const char *prefix = "sm_";
    const std::string features = polykernel.features;
    if (features.rfind(prefix, 0) == 0) {
        char *end = nullptr;
        const long needed = std::strtol(features.c_str() + std::strlen(prefix), &end, 10);
        // Code for an architecture with a letter runs on no other.
        const bool fits = *end == 'a' ? needed == capability : needed <= capability;
        if (needed > 0 && fits) {
            return "";
        }
    }
    return "'" + features + "' (it has sm_" + std::to_string(capability) + ")";
}

// ---- Memory and objects ----------------------------------------------------------------------

std::unique_ptr<distile_mask> CudaDevice::make_mask() {
    return std::make_unique<CudaMask>(*this);
}

std::unique_ptr<distile_planner> CudaDevice::make_planner(const PlannerSettings &settings) {
    return std::make_unique<CudaPlanner>(*this, settings);
}

std::shared_ptr<void> CudaDevice::allocate(size_t bytes) {
    refuse_capture("the call needs more GPU memory");
    const auto memory = std::make_shared<UploadedMemory>(used_);
    check(driver.cuMemAlloc(&memory->address, bytes), "cuMemAlloc");
    return {memory, reinterpret_cast<void *>(memory->address)};
}

std::shared_ptr<const void> CudaDevice::upload(const void *from, size_t bytes) {
    std::shared_ptr<void> memory = allocate(bytes);
    check(driver.cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(memory.get()), from, bytes), "cuMemcpyHtoD");
    // The caller's stream may not wait for the default stream, which did the copy.
    check(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    return memory;
}

ScratchMemory CudaDevice::take_scratch(size_t bytes) {
    dense_output_->reserve(bytes);
    // The memory stays here for the next call: all work is on one stream.
    return {dense_output_->as<void>(), [](void *) {}};
}

const StageTarget *CudaDevice::stage_target() const {
    return StageRunner::runs_on(*this) ? &gpu_stage_target : nullptr;
}

void CudaDevice::run_stage(const Stage &stage, StageTrace *trace) {
    if (!stages_) {
        stages_ = std::make_unique<StageRunner>(*this);
    }
    stages_->run(stage, trace);
}

// ---- Work ------------------------------------------------------------------------------------

void CudaDevice::enqueue(CUfunction function, CUstream on, const LaunchGrid &grid, void **arguments) const {
    const LaunchConfig config(grid, on);
    if (config.get()->numAttrs == 0) {
        check(driver.cuLaunchKernel(function, grid.x, grid.y, grid.z, grid.threads, grid.threads_y, grid.threads_z,
                                    grid.shared_bytes, on, arguments, nullptr),
              "cuLaunchKernel");
        return;
    }
    check(driver.cuLaunchKernelEx(config.get(), function, arguments, nullptr), "cuLaunchKernelEx");
}

int32_t CudaDevice::most_clusters(CUfunction function, const LaunchGrid &grid) const {
    int clusters = 0;
    check(driver.cuOccupancyMaxActiveClusters(&clusters, function, LaunchConfig(grid, nullptr).get()),
          "cuOccupancyMaxActiveClusters");
    return clusters;
}

void CudaDevice::update_pixels(CUstream on, const DeviceBits &bits, const PixelUpdate &update) const {
    launch(kernels->update_pixels(update.unit), on, {blocks_for(update, most_blocks())}, bits, update);
}

void CudaDevice::update_pixels(distile_mask *mask, const distile_tensor &output, const distile_tensor *from,
                               bool zero) {
    update_pixels(caller_stream, mask ? static_cast<CudaMask &>(*mask).device_bits() : DeviceBits{},
                  make_update(output, from, {1, 1}, zero));
}

void CudaDevice::write(CUstream on, const Zeros &zeros) const {
    update_pixels(on, static_cast<CudaMask &>(zeros.mask).device_bits(),
                  make_update(zeros.output, nullptr, {1, 1}, true, zeros.byte));
}

void CudaDevice::write(const Zeros &zeros) {
    write(caller_stream, zeros);
}

void CudaDevice::upsample_nearest(const distile_tensor &input, const distile_tensor &output, distile_mask &mask,
                                  int32_t scale_h, int32_t scale_w, bool zero) {
    check_pointer(input.data, element_bytes(input.dtype), "input");
    check_pointer(output.data, element_bytes(output.dtype), "output");
    update_pixels(caller_stream, static_cast<CudaMask &>(mask).device_bits(),
                  make_update(output, &input, {scale_h, scale_w}, zero));
}

std::unique_ptr<LoadedCode> CudaDevice::load(const distile_kernel &kernel) {
    auto code = std::make_unique<CudaCode>(*this);
    rehearse(kernel, [&](const distile_variant &variant, distile_kernel_call &call) {
        return runner->rehearse(*code, variant, call);
    });
    return code;
}

bool CudaDevice::chooses_for(const distile_mask &mask) const {
    return choose_on_device || !static_cast<const CudaMask &>(mask).host_may_count();
}

std::unique_ptr<DeviceChooser> CudaDevice::make_chooser(int32_t num_variants) {
    return std::make_unique<CudaChooser>(*this, num_variants);
}

RunResult CudaDevice::run(LoadedCode *code, const VariantCalls &calls, const Zeros *zeros) {
    const bool beside = zeros && calls.calls[0].store_tiles == 0;
    if (zeros && !beside) {
        write(caller_stream, *zeros);
    }
    if (beside) {
        side_->fork();
    }
    RunResult result{};
    auto &cuda_code = static_cast<CudaCode &>(*code);
    if (calls.choice) {
        result = runner->run_chosen(cuda_code, calls);
    }
    for (int32_t i = 0; !calls.choice && i < calls.num_calls && result.code == 0; i++) {
        result = runner->run(cuda_code, calls.polykernel.variants[calls.variants[i]], calls.calls[i]);
        result.failed = i;
    }
    if (result.code != 0 || !beside) {
        return result;
    }
    // Enqueue after the operator, so its blocks start first and the zeros fill the gaps.
    side_->begin();
    write(side_->stream(), *zeros);
    try {
        side_->join();
    } catch (...) {
        // Later work must not run beside the zeros.
        driver.cuStreamSynchronize(side_->stream());
        throw;
    }
    return result;
}

}  // namespace distile
