#include "bench/peers/onednn/onednn_engine.h"
#include <cstdlib>
#include <dlfcn.h>
#include <stdexcept>
#include <unistd.h>

namespace distile {

namespace {

constexpr const char *driver_variable = "OCL_ICD_FILENAMES";

/** Names the CPU driver of a wheel in the environment, unless one is named. Without it, SYCL finds no CPU. */
void name_driver() {
    Dl_info library{};
    if (std::getenv(driver_variable) || !dladdr(reinterpret_cast<const void *>(&dnnl_version), &library) ||
        !library.dli_fname) {
        return;
    }
    const std::string path = library.dli_fname;
    const std::string driver = path.substr(0, path.rfind('/') + 1) + "libintelocl.so";
    if (access(driver.c_str(), R_OK) == 0) {
        setenv(driver_variable, driver.c_str(), 0);
    }
}

std::string runtime_name(unsigned runtime) {
    switch (runtime) {
    case DNNL_RUNTIME_SEQ:
        return "sequential";
    case DNNL_RUNTIME_OMP:
        return "OpenMP";
    case DNNL_RUNTIME_TBB:
        return "TBB";
    case DNNL_RUNTIME_THREADPOOL:
        return "thread pool";
    case DNNL_RUNTIME_DPCPP:
        // SYCL always runs on TBB's threads.
        return "SYCL, TBB";
    default:
        return "unknown runtime";
    }
}

}  // namespace

OneDnnEngine::OneDnnEngine() {
    name_driver();
    try {
        impl_ = std::make_shared<Impl>();
    } catch (const dnnl::error &error) {
        const char *driver = std::getenv(driver_variable);
        throw std::runtime_error(std::string("oneDNN ") + version() + " cannot use this CPU (" + error.what() +
                                 "); its SYCL runtime looks for its driver, libintelocl.so, in " + driver_variable +
                                 ", which is " + (driver ? "'" + std::string(driver) + "'" : "not set"));
    }
}

std::string OneDnnEngine::version() {
    const dnnl_version_t *version = dnnl_version();
    return std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch) + " (" + runtime_name(version->cpu_runtime) + ")";
}

}  // namespace distile
