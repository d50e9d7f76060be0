#include "runtime/cuda/code_runner.h"
#include "kernels/call.h"
#include "runtime/base/types.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/gpu/rehearsal.h"
#include <array>
#include <optional>

namespace distile {

namespace {

LaunchGrid grid_of(const distile_gpu_launch &launch) {
    const auto number = [](int32_t value) { return static_cast<uint32_t>(value); };
    LaunchGrid grid{number(launch.blocks[0]), number(launch.blocks[1]), number(launch.threads[0]),
                    number(launch.shared_bytes)};
    grid.z = number(launch.blocks[2]);
    grid.threads_y = number(launch.threads[1]);
    grid.threads_z = number(launch.threads[2]);
    grid.cluster = number(launch.cluster);
    grid.early = launch.early != 0;
    return grid;
}

/** The driver's number of a type that is copied in boxes; nothing for others. */
std::optional<CUtensorMapDataType> box_type(distile_dtype dtype) {
    switch (dtype) {
    case DISTILE_FLOAT32:
        return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DISTILE_FLOAT16:
        return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DISTILE_BFLOAT16:
        return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    default:
        return std::nullopt;
    }
}

}  // namespace

CudaCode::~CudaCode() {
    if (!modules_.empty()) {
        device_.driver.cuCtxSynchronize();
    }
    for (const auto &[code, module] : modules_) {
        device_.driver.cuModuleUnload(module.module);
    }
}

CudaCode::Module &CudaCode::module(const char *code) {
    auto found = modules_.find(code);
    if (found == modules_.end()) {
        found = modules_.emplace(code, Module{}).first;
        try {
            found->second.module = device_.loader->load(code);
        } catch (...) {
            modules_.erase(found);
            throw;
        }
    }
    return found->second;
}

CUfunction CudaCode::function(Module &module, const char *name, int32_t shared_bytes) const {
    for (const auto &[known, function] : module.functions) {
        if (known == name) {
            return function;
        }
    }
    module.functions.reserve(module.functions.size() + 1);
    CUfunction found = device_.loader->find(module.module, name);
    // More must be asked for.
    constexpr int32_t default_shared_bytes = 48 << 10;
    if (shared_bytes > default_shared_bytes) {
        device_.check(
            device_.driver.cuFuncSetAttribute(found, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes),
            "cuFuncSetAttribute");
    }
    module.functions.emplace_back(name, found);
    return found;
}

/** Runs the body of a hook. Lets no exception escape into the code that called it. */
template<typename Body> int CodeRunner::guarded_hook(distile_hooks *hooks, const Body &body) {
    auto &context = *static_cast<distile_context *>(hooks);
    CodeRunner &runner = *static_cast<CudaDevice &>(*context.device).runner;
    try {
        body(runner);
        return 0;
    } catch (const Failure &failure) {
        runner.status_ = failure.status;
    } catch (const std::bad_alloc &) {
        runner.status_ = fail(&context, DISTILE_ERROR_OUT_OF_MEMORY, "distile_run: an allocation failed");
    } catch (const std::exception &error) {
        runner.status_ =
            fail(&context, DISTILE_ERROR_INTERNAL, "distile_run: an unexpected exception: %s", error.what());
    } catch (...) {
        runner.status_ = fail(&context, DISTILE_ERROR_INTERNAL, "distile_run: an unexpected exception");
    }
    // The code also reports this failure, but our message says more.
    context.kernel_failed = true;
    constexpr int refused = -1;
    return refused;
}

const distile_gpu_hooks CodeRunner::hooks = {
    [](distile_hooks *hooks, const char *code, size_t) {
        return guarded_hook(hooks, [&](CodeRunner &runner) { runner.module_ = &runner.code_->module(code); });
    },
    [](distile_hooks *hooks, const distile_gpu_launch *launch) {
        return guarded_hook(hooks, [&](CodeRunner &runner) { runner.launch(*launch); });
    },
    [](distile_hooks *hooks, const distile_gpu_launch *launch, int32_t *blocks) {
        return guarded_hook(hooks, [&](CodeRunner &runner) { *blocks = runner.count_resident(*launch); });
    },
    [](distile_hooks *hooks, uint64_t bytes, uint64_t *address) {
        return guarded_hook(hooks, [&](CodeRunner &runner) { *address = runner.allocate(bytes); });
    },
    [](distile_hooks *hooks, uint64_t bytes, uint64_t *address) {
        return guarded_hook(hooks, [&](CodeRunner &runner) { *address = runner.signals(bytes); });
    },
    [](distile_hooks *hooks, const distile_gpu_boxes *boxes, void *map) {
        return guarded_hook(hooks,
                            [&](CodeRunner &runner) { runner.map_boxes(*boxes, static_cast<CUtensorMap *>(map)); });
    },
    nullptr};

/** Calls code, and keeps what its hooks report. */
template<typename Body> RunResult CodeRunner::guarded_call(CudaCode &code, bool rehearsal, const Body &body) {
    rehearsal_ = rehearsal;
    code_ = &code;
    module_ = nullptr;
    status_ = DISTILE_OK;
    scratch_used_ = 0;
    const int result = body();
    return {result,
            status_ != DISTILE_OK                  ? status_
            : result == DISTILE_CALL_OUT_OF_MEMORY ? DISTILE_ERROR_OUT_OF_MEMORY
                                                   : DISTILE_ERROR_KERNEL,
            0};
}

RunResult CodeRunner::run(CudaCode &code, const distile_variant &variant, distile_kernel_call &call) {
    call.hooks = &device_.context;
    return guarded_call(code, false, [&] { return variant.run(&call); });
}

RunResult CodeRunner::rehearse(CudaCode &code, const distile_variant &variant, distile_kernel_call &call) {
    call.hooks = &device_.context;
    return guarded_call(code, true, [&] { return variant.run(&call); });
}

RunResult CodeRunner::run_chosen(CudaCode &code, const VariantCalls &calls) {
    for (int32_t i = 0; i < calls.num_calls; i++) {
        calls.calls[i].hooks = &device_.context;
    }
    return guarded_call(code, false, [&] {
        return calls.polykernel.run_chosen(calls.calls, calls.variants, calls.num_calls, calls.choice);
    });
}

void CodeRunner::launch(const distile_gpu_launch &launch) const {
    CUfunction function = code_->function(*module_, launch.kernel, launch.shared_bytes);
    // CUDA rejects an empty launch.
    if (rehearsal_ || launch.blocks[0] == 0 || launch.blocks[1] == 0 || launch.blocks[2] == 0) {
        return;
    }
    device_.enqueue(function, device_.caller_stream, grid_of(launch), launch.arguments);
}

int32_t CodeRunner::count_resident(const distile_gpu_launch &launch) const {
    CUfunction function = code_->function(*module_, launch.kernel, launch.shared_bytes);
    const std::pair key(function, launch.cluster);
    auto found = module_->clusters.find(key);
    if (found == module_->clusters.end()) {
        LaunchGrid grid = grid_of(launch);
        grid.x = grid.cluster;
        grid.y = grid.z = 1;
        grid.early = false;
        found = module_->clusters.emplace(key, device_.most_clusters(function, grid)).first;
    }
    return found->second * launch.cluster;
}

uint64_t CodeRunner::allocate(uint64_t bytes) {
    if (rehearsal_) {
        return nowhere;
    }
    if (scratch_used_ == scratch_.size()) {
        scratch_.reserve(scratch_used_ + 1);
        scratch_.push_back(std::make_unique<DeviceMemory>(device_));
    }
    DeviceMemory &memory = *scratch_[scratch_used_];
    memory.reserve(bytes);
    scratch_used_++;
    return memory.address();
}

uint64_t CodeRunner::signals(uint64_t bytes) {
    if (rehearsal_) {
        return nowhere;
    }
    signals_.reserve_zeros(bytes);
    return signals_.address();
}

void CodeRunner::map_boxes(const distile_gpu_boxes &boxes, CUtensorMap *map) const {
    if (rehearsal_) {
        return;
    }
    const distile_array &array = *boxes.array;
    const std::optional<CUtensorMapDataType> type = box_type(array.dtype);
    if (!type) {
        throw Failure{fail(&device_.context, DISTILE_ERROR_BAD_TYPE,
                           "distile_run: tensors of %s are not copied in boxes", type_name(array.dtype))};
    }
    const auto bytes = static_cast<uint64_t>(element_bytes(array.dtype));
    constexpr size_t dimensions = 4;
    std::array<cuuint64_t, dimensions> extents{};
    std::array<cuuint64_t, dimensions - 1> strides{};
    for (size_t i = 0; i < dimensions; i++) {
        extents.at(i) = static_cast<cuuint64_t>(array.dim[i].extent);
        if (i > 0) {
            // The driver wants one even of a single image.
            const uint64_t any = i == 1 ? extents.front() * bytes : strides.at(i - 2);
            strides.at(i - 1) = array.dim[i].extent > 1 ? static_cast<uint64_t>(array.dim[i].stride) * bytes : any;
        }
    }
    const auto span = [](int32_t pixels, int32_t step) { return static_cast<cuuint32_t>((pixels - 1) * step + 1); };
    const std::array<cuuint32_t, dimensions> box = {static_cast<cuuint32_t>(128 / bytes),
                                                    span(boxes.pixels_w, boxes.step_w),
                                                    span(boxes.pixels_h, boxes.step_h), 1};
    const std::array<cuuint32_t, dimensions> steps = {1, static_cast<cuuint32_t>(boxes.step_w),
                                                      static_cast<cuuint32_t>(boxes.step_h), 1};
    device_.check(device_.driver.cuTensorMapEncodeTiled(
                      map, *type, dimensions, array.data, extents.data(), strides.data(), box.data(), steps.data(),
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                  "cuTensorMapEncodeTiled");
}

}  // namespace distile
