/** \file
 * The CUDA driver, loaded on first use, so this library links no CUDA library.
 */
#ifndef DISTILE_CUDA_DRIVER_H
#define DISTILE_CUDA_DRIVER_H

#include <cuda.h>
#include <distile/distile.h>
#include <string>

// Green contexts came with CUDA 12.4.
#if CUDA_VERSION >= 12040
#define DISTILE_CUDA_RESOURCES
#endif
// Graphs that branch several ways came with CUDA 12.8.
#if CUDA_VERSION >= 12080
#define DISTILE_CUDA_SWITCHES
#endif

namespace distile {

// cuda.h versions some of these names by macro; the members below expand the same way.
// clang-format off
#define DISTILE_CUDA_FUNCTIONS(X)                                                                                      \
    X(cuInit) X(cuDriverGetVersion) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetAttribute)                         \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxPushCurrent) X(cuCtxPopCurrent)                    \
    X(cuCtxGetDevice) X(cuCtxSynchronize) X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize)                  \
    X(cuStreamIsCapturing) X(cuStreamWaitEvent) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord)                    \
    X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuFuncGetAttribute) X(cuFuncSetAttribute)           \
    X(cuLinkCreate) X(cuLinkAddData) X(cuLinkComplete) X(cuLinkDestroy) X(cuLaunchKernel) X(cuLaunchKernelEx)          \
    X(cuMemAlloc) X(cuMemFree) X(cuMemAllocHost) X(cuMemFreeHost) X(cuMemcpyHtoD) X(cuMemcpyDtoHAsync)                 \
    X(cuMemcpyDtoDAsync) X(cuMemsetD8Async) X(cuPointerGetAttribute) X(cuGetErrorName)                                 \
    X(cuOccupancyMaxActiveClusters) X(cuTensorMapEncodeTiled) X(cuDeviceCanAccessPeer) X(cuCtxEnablePeerAccess)
#define DISTILE_CUDA_GRAPH_FUNCTIONS(X)                                                                                \
    X(cuGraphCreate) X(cuGraphDestroy) X(cuGraphConditionalHandleCreate) X(cuGraphAddNode)                             \
    X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuGraphExecDestroy)
// clang-format on

struct Driver {
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define DISTILE_CUDA_MEMBER(name) decltype(&::name) name;
    DISTILE_CUDA_FUNCTIONS(DISTILE_CUDA_MEMBER)
#undef DISTILE_CUDA_MEMBER
#ifdef DISTILE_CUDA_RESOURCES
    decltype(&::cuCtxGetDevResource) cuCtxGetDevResource;  ///< Null if the driver is too old.
#endif
#ifdef DISTILE_CUDA_SWITCHES
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define DISTILE_CUDA_MEMBER(name) decltype(&::name) name;
    DISTILE_CUDA_GRAPH_FUNCTIONS(DISTILE_CUDA_MEMBER)  ///< Null if the driver is too old.
#undef DISTILE_CUDA_MEMBER
#endif
};

/** Why load_driver() failed. */
struct DriverFailure {
    distile_status status;  ///< NO_DRIVER or OLD_DRIVER; DISTILE_OK if nothing is missing.
    std::string message;
};

/** The driver, which stays loaded, or null with the reason in `failure`. Thread-safe. */
const Driver *load_driver(DriverFailure &failure);

}  // namespace distile

#endif
