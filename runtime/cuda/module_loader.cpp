#include "runtime/cuda/module_loader.h"
#include "runtime/cuda/cuda_device.h"
#include <cstring>
#include <memory>
#include <utility>

namespace distile {

ModuleLoader::ModuleLoader(const CudaDevice &device, CubinCache cache) : device_(device), cache_(std::move(cache)) {
}

CUfunction ModuleLoader::find(CUmodule module, const char *name) const {
    CUfunction function = nullptr;
    device_.check(device_.driver.cuModuleGetFunction(&function, module, name), "cuModuleGetFunction");
    // Any query forces loading, which the driver may otherwise defer to the first launch.
    int registers = 0;
    device_.check(device_.driver.cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function),
                  "cuFuncGetAttribute");
    return function;
}

void ModuleLoader::check_code(CUresult result, const char *log) const {
    if (result != CUDA_SUCCESS) {
        const int version = device_.driver_version, capability = device_.capability;
        throw Failure{fail(&device_.context, status_of(result),
                           "the driver (CUDA %d.%d) rejected the code for compute capability %d.%d: %s %s",
                           version / 1000, version % 1000 / 10, capability / 10, capability % 10,
                           device_.name_of(result), log)};
    }
}

std::string ModuleLoader::compile(const char *ptx) const {
    const Driver &driver = device_.driver;
    char log[256] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, reinterpret_cast<void *>(sizeof(log))};
    CUlinkState state = nullptr;
    device_.check(driver.cuLinkCreate(2, options, values, &state), "cuLinkCreate");
    const auto destroy = [&driver](CUlinkState linker) { driver.cuLinkDestroy(linker); };
    const std::unique_ptr<std::remove_pointer_t<CUlinkState>, decltype(destroy)> linker(state, destroy);
    void *cubin = nullptr;
    size_t bytes = 0;
    CUresult result = driver.cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char *>(ptx), std::strlen(ptx) + 1,
                                           "distile", 0, nullptr, nullptr);
    if (result == CUDA_SUCCESS) {
        result = driver.cuLinkComplete(state, &cubin, &bytes);
    }
    check_code(result, log);
    // The linker owns the cubin.
    return {static_cast<const char *>(cubin), bytes};
}

CUmodule ModuleLoader::load(const char *code) const {
    const Driver &driver = device_.driver;
    CUmodule module = nullptr;
    const bool is_cubin = std::strncmp(code, "\177ELF", 4) == 0;
    if (is_cubin || !cache_.is_on()) {
        // Nothing to compile, or the driver caches the compilation itself.
        check_code(driver.cuModuleLoadData(&module, code), "");
        return module;
    }
    const std::string kept = cache_.find(code);
    if (kept.empty() || driver.cuModuleLoadData(&module, kept.data()) != CUDA_SUCCESS) {
        const std::string cubin = compile(code);
        // Before loading: if this throws, no loaded module leaks.
        cache_.keep(code, cubin);
        check_code(driver.cuModuleLoadData(&module, cubin.data()), "");
    }
    return module;
}

}  // namespace distile
