// In place of opencl.cpp where there are no OpenCL headers to build with.
#include "measure_backend.h"

namespace distile {

namespace {

[[noreturn]] void refuse() {
    throw FileError("this program was built without OpenCL's headers (CL/cl.h), and cannot measure on OpenCL devices");
}

}  // namespace

const MeasureBackend &opencl_measure_backend() {
    static const MeasureBackend backend = {
        opencl_backend(),
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
