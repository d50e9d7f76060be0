#include "autoscheduler/bound/bound_backend.h"
#include "schedules/cuda_space.h"

namespace distile {

const BoundBackend &opencl_bound_backend() {
    // The schedules are those of NVIDIA GPUs within other limits, and so is their bound.
    const BoundBackend &cuda = cuda_bound_backend();
    static const BoundBackend backend = {
        opencl_backend(),
        cuda.space,
        [](const OperatorFacts &op, int, int) { return opencl_problem(op); },
        cuda.vectors_of,
        cuda.model,
        cuda.fields,
        {"shared", "L2", "DRAM"},
        {{"OpenCL device", 0, 0}},
        true,
        [](const Architecture &) { return std::vector<const char *>{"generic_opencl"}; },
        {4, 8, 16, 32},
        [](const std::string &) { return std::vector<std::string>(); },
        {}};
    return backend;
}

}  // namespace distile
