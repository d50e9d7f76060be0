#include "autoscheduler/measure/measure_backend.h"
#include <distile/distile.hpp>

namespace distile {

namespace cuda_functions {
namespace {

void check(const std::string &, const std::string &) {
    make_cuda_context();
}

}  // namespace
}  // namespace cuda_functions

const MeasureBackend &cuda_measure_backend() {
    using namespace cuda_functions;
    // GPU drivers reserve much more memory than they use.
    static const MeasureBackend backend = {cuda_backend(),   calibrate_cuda, check,        profile_cuda,
                                           make_cuda_device, false,          "0, for all", 0};
    return backend;
}

}  // namespace distile
