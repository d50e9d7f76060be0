// In place of cuda.cpp where there is no CUDA toolkit to build with.
#include "autoscheduler/measure/backends/missing.h"

namespace distile {

namespace {

const char *without() {
    return "a CUDA toolkit (nvcc), and cannot measure on NVIDIA GPUs";
}

}  // namespace

const MeasureBackend &cuda_measure_backend() {
    static const MeasureBackend backend = missing_backend<without>(cuda_backend());
    return backend;
}

}  // namespace distile
