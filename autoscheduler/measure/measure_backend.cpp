#include "autoscheduler/measure/measure_backend.h"

namespace distile {

const MeasureBackend &measure_backend(const std::string &name) {
    const Backend &backend = get_backend(name);
    for (const MeasureBackend *measured :
         {&cpu_measure_backend(), &cuda_measure_backend(), &opencl_measure_backend()}) {
        if (&measured->backend == &backend) {
            return *measured;
        }
    }
    throw FileError("devices of the backend " + quote(name) + " cannot be measured");
}

}  // namespace distile
