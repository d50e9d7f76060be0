#include "autoscheduler/measure/measure_backend.h"
#include "reference/processor.h"
#include "runtime/cpu/cpu_features.h"

namespace distile {

namespace cpu_functions {
namespace {

void check(const std::string &device, const std::string &target) {
    if (!device.empty() && device != cpu_name()) {
        throw FileError("the device profile is of '" + device + "', and this machine is '" + cpu_name() +
                        "': calibrate it with distile calibrate");
    }
    const std::string missing = missing_cpu_feature(cpu_backend().features_of(target).c_str());
    if (!missing.empty()) {
        throw FileError("this CPU has no " + missing + ", which the target '" + target + "' needs");
    }
}

}  // namespace
}  // namespace cpu_functions

const MeasureBackend &cpu_measure_backend() {
    using namespace cpu_functions;
    static const MeasureBackend backend = {cpu_backend(), calibrate_cpu,        check, profile_cpu, make_cpu_device,
                                           true,          "1 and one per core", 1};
    return backend;
}

}  // namespace distile
