/** \file
 * The CUDA driver, loaded when it is first asked for: the library links no CUDA library.
 */
#ifndef DISTILE_CUDA_DRIVER_H
#define DISTILE_CUDA_DRIVER_H

#include <cuda.h>
#include <distile/distile.h>
#include <string>

// Contexts with some of the multiprocessors came with CUDA 12.4.
#if CUDA_VERSION >= 12040
#define DISTILE_CUDA_RESOURCES
#endif

namespace distile {

// cuda.h gives some of these names a version; the members below get the same.
// clang-format off
#define DISTILE_CUDA_FUNCTIONS(X)                                                                                      \
    X(cuInit) X(cuDriverGetVersion) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetAttribute)                         \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxPushCurrent) X(cuCtxPopCurrent)                    \
    X(cuCtxGetDevice) X(cuCtxSynchronize) X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize)                  \
    X(cuStreamIsCapturing) X(cuStreamWaitEvent) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord)                    \
    X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuFuncGetAttribute) X(cuLinkCreate)                 \
    X(cuLinkAddData) X(cuLinkComplete) X(cuLinkDestroy) X(cuLaunchKernel) X(cuMemAlloc) X(cuMemFree)                   \
    X(cuMemAllocHost) X(cuMemFreeHost) X(cuMemcpyHtoD) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync) X(cuMemsetD8Async)    \
    X(cuPointerGetAttribute) X(cuGetErrorName)
// clang-format on

struct Driver {
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define DISTILE_CUDA_MEMBER(name) decltype(&::name) name;
    DISTILE_CUDA_FUNCTIONS(DISTILE_CUDA_MEMBER)
#undef DISTILE_CUDA_MEMBER
#ifdef DISTILE_CUDA_RESOURCES
    decltype(&::cuCtxGetDevResource) cuCtxGetDevResource;  ///< Null where the driver is older.
#endif
};

/** What load_driver() did not find. */
struct DriverFailure {
    distile_status status;  ///< NO_DRIVER or OLD_DRIVER; DISTILE_OK if nothing is missing.
    std::string message;
};

/** The driver, or null with what is missing. Stays loaded. Any thread may call it. */
const Driver *load_driver(DriverFailure &failure);

}  // namespace distile

#endif
