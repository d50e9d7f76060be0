#include "autoscheduler/measure/measure_backend.h"

namespace distile {

namespace opencl_functions {
namespace {

/** What the device says of itself. The other figures are those of the generic profile, not measured. */
DeviceProfile calibrate_opencl(int units, const Progress &) {
    DeviceProfile profile = generic_device_profile(opencl_backend().usual_profile);
    profile.name = make_opencl_device(units)->name();
    profile.cores = opencl_units();
    return profile;
}

void check(const std::string &, const std::string &) {
    make_opencl_device(0);
}

}  // namespace
}  // namespace opencl_functions

const MeasureBackend &opencl_measure_backend() {
    using namespace opencl_functions;
    // Drivers reserve much more memory than they use.
    static const MeasureBackend backend = {
        opencl_backend(), calibrate_opencl, check, profile_opencl, make_opencl_device, false, "0, for all", 0};
    return backend;
}

}  // namespace distile
