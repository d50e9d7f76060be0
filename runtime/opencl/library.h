/** \file
 * The OpenCL loader, loaded on first use, so this library links no OpenCL library.
 */
#ifndef DISTILE_OPENCL_LIBRARY_H
#define DISTILE_OPENCL_LIBRARY_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <distile/distile.h>
#include <string>

namespace distile {

// clang-format off
#define DISTILE_OPENCL_FUNCTIONS(X)                                                                                    \
    X(clGetPlatformIDs) X(clGetDeviceIDs) X(clGetDeviceInfo) X(clCreateContext) X(clRetainContext) X(clReleaseContext) \
    X(clCreateCommandQueue) X(clRetainCommandQueue) X(clReleaseCommandQueue) X(clGetCommandQueueInfo)                  \
    X(clCreateBuffer) X(clRetainMemObject) X(clReleaseMemObject) X(clGetMemObjectInfo)                                 \
    X(clCreateProgramWithSource) X(clCreateProgramWithBinary) X(clBuildProgram) X(clGetProgramInfo)                    \
    X(clGetProgramBuildInfo) X(clReleaseProgram) X(clCreateKernel) X(clReleaseKernel) X(clSetKernelArg)                \
    X(clGetKernelWorkGroupInfo) X(clEnqueueNDRangeKernel) X(clEnqueueReadBuffer) X(clEnqueueCopyBuffer)                \
    X(clEnqueueFillBuffer) X(clEnqueueBarrierWithWaitList) X(clEnqueueMarkerWithWaitList) X(clFinish)
// clang-format on

struct OpenClLibrary {
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define DISTILE_OPENCL_MEMBER(name) decltype(&::name) name;
    DISTILE_OPENCL_FUNCTIONS(DISTILE_OPENCL_MEMBER)
#undef DISTILE_OPENCL_MEMBER
};

/** Why load_opencl() failed. */
struct LibraryFailure {
    distile_status status;  ///< NO_DRIVER or OLD_DRIVER; DISTILE_OK if nothing is missing.
    std::string message;
};

/** The loader, which stays loaded, or null with the reason in `failure`. Thread-safe. */
const OpenClLibrary *load_opencl(LibraryFailure &failure);

/** The name of a result in cl.h, for messages. */
const char *opencl_name(cl_int result);
/** The status for a result. */
distile_status opencl_status(cl_int result);

}  // namespace distile

#endif
