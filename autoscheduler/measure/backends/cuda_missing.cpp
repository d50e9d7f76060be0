// In place of cuda.cpp where there is no CUDA toolkit to build with.
#include "measure_backend.h"

namespace distile {

namespace {

[[noreturn]] void refuse() {
    throw FileError("this program was built without a CUDA toolkit (nvcc), and cannot measure on NVIDIA GPUs");
}

}  // namespace

const MeasureBackend &cuda_measure_backend() {
    static const MeasureBackend backend = {
        cuda_backend(),
        [](int, const Progress &) -> DeviceProfile { refuse(); },
        [](const std::string &, const std::string &) { refuse(); },
        [](const Plan &, const SharedObject &, const ProfileOptions &, const Progress &) -> Profile { refuse(); },
        [](int) -> std::unique_ptr<TrialDevice> { refuse(); },
        false,
        "0, for all",
        0};
    return backend;
}

}  // namespace distile
