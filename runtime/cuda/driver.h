/** \file
 * The CUDA driver, loaded when it is first asked for: the library links no CUDA library.
 */
#ifndef DISTILE_CUDA_DRIVER_H
#define DISTILE_CUDA_DRIVER_H

#include <cuda.h>
#include <string>

namespace distile {

// cuda.h gives some of these names a version; the members below get the same.
// clang-format off
#define DISTILE_CUDA_FUNCTIONS(X)                                                                                      \
    X(cuInit)                                                                                                          \
    X(cuDeviceGetCount)                                                                                                \
    X(cuDeviceGet)                                                                                                     \
    X(cuDeviceGetAttribute)                                                                                            \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxGetDevice)  \
    X(cuCtxSynchronize) X(cuStreamSynchronize) X(cuStreamIsCapturing) X(cuModuleLoadData) X(cuModuleUnload)        \
    X(cuModuleGetFunction) X(cuFuncGetAttribute) X(cuLaunchKernel) X(cuMemAlloc) X(cuMemFree)                  \
    X(cuMemAllocHost) X(cuMemFreeHost) X(cuMemcpyHtoD) X(cuMemcpyDtoHAsync) X(cuMemsetD8)                  \
    X(cuPointerGetAttribute) X(cuGetErrorName)
// clang-format on

struct Driver {
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define DISTILE_CUDA_MEMBER(name) decltype(&::name) name;
    DISTILE_CUDA_FUNCTIONS(DISTILE_CUDA_MEMBER)
#undef DISTILE_CUDA_MEMBER
};

/** The driver, or null with a sentence about what is missing. Stays loaded. Any thread may call it. */
const Driver *load_driver(std::string &why_not);

}  // namespace distile

#endif
