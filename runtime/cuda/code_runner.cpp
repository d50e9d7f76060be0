#include "code_runner.h"
#include "cuda_device.h"
#include <array>

namespace distile {

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
        runner.status_ = fail(&context, DISTILE_ERROR_OUT_OF_MEMORY, "an allocation failed");
    } catch (const std::exception &error) {
        runner.status_ = fail(&context, DISTILE_ERROR_INTERNAL, "an unexpected exception: %s", error.what());
    } catch (...) {
        runner.status_ = fail(&context, DISTILE_ERROR_INTERNAL, "an unexpected exception");
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
    [](distile_hooks *hooks, uint64_t bytes, uint64_t *address) {
        return guarded_hook(hooks, [&](CodeRunner &runner) { *address = runner.allocate(bytes); });
    }};

RunResult CodeRunner::run(CudaCode &code, const distile_variant &variant, distile_kernel_call &call) {
    return this->call(code, variant, call, false);
}

RunResult CodeRunner::rehearse(CudaCode &code, const distile_variant &variant, distile_kernel_call &call) {
    return this->call(code, variant, call, true);
}

RunResult CodeRunner::call(CudaCode &code, const distile_variant &variant, distile_kernel_call &call, bool rehearsal) {
    rehearsal_ = rehearsal;
    code_ = &code;
    module_ = nullptr;
    status_ = DISTILE_OK;
    scratch_used_ = 0;
    call.hooks = &device_.context;
    const int result = variant.run(&call);
    return {result, status_ != DISTILE_OK                  ? status_
                    : result == DISTILE_CALL_OUT_OF_MEMORY ? DISTILE_ERROR_OUT_OF_MEMORY
                                                           : DISTILE_ERROR_KERNEL};
}

void CodeRunner::launch(const distile_gpu_launch &launch) const {
    CUfunction function = code_->function(*module_, launch.kernel, launch.shared_bytes);
    // CUDA rejects an empty launch.
    if (rehearsal_ || launch.blocks[0] == 0 || launch.blocks[1] == 0 || launch.blocks[2] == 0) {
        return;
    }
    const auto number = [](int32_t value) { return static_cast<unsigned>(value); };
    std::array<CUlaunchAttribute, 2> attributes{};
    CUlaunchConfig config{};
    config.attrs = attributes.data();
    if (launch.cluster > 1) {
        CUlaunchAttribute &attribute = attributes.at(config.numAttrs++);
        attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute.value.clusterDim.x = number(launch.cluster);
        attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
    }
    if (launch.early != 0) {
        CUlaunchAttribute &attribute = attributes.at(config.numAttrs++);
        attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
    }
    if (config.numAttrs == 0) {
        device_.check(device_.driver.cuLaunchKernel(
                          function, number(launch.blocks[0]), number(launch.blocks[1]), number(launch.blocks[2]),
                          number(launch.threads[0]), number(launch.threads[1]), number(launch.threads[2]),
                          number(launch.shared_bytes), device_.caller_stream, launch.arguments, nullptr),
                      "cuLaunchKernel");
        return;
    }
    config.gridDimX = number(launch.blocks[0]);
    config.gridDimY = number(launch.blocks[1]);
    config.gridDimZ = number(launch.blocks[2]);
    config.blockDimX = number(launch.threads[0]);
    config.blockDimY = number(launch.threads[1]);
    config.blockDimZ = number(launch.threads[2]);
    config.sharedMemBytes = number(launch.shared_bytes);
    config.hStream = device_.caller_stream;
    device_.check(device_.driver.cuLaunchKernelEx(&config, function, launch.arguments, nullptr), "cuLaunchKernelEx");
}

uint64_t CodeRunner::allocate(uint64_t bytes) {
    if (rehearsal_) {
        // Never read, but null would mean that the allocation failed.
        constexpr uint64_t nowhere = 256;
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

}  // namespace distile
