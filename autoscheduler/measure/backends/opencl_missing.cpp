// In place of opencl.cpp where there are no OpenCL headers to build with.
#include "autoscheduler/measure/backends/missing.h"

namespace distile {

namespace {

const char *without() {
    return "OpenCL's headers (CL/cl.h), and cannot measure on OpenCL devices";
}

}  // namespace

const MeasureBackend &opencl_measure_backend() {
    static const MeasureBackend backend = missing_backend<without>(opencl_backend());
    return backend;
}

}  // namespace distile
