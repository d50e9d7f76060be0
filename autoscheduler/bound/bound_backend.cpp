#include "autoscheduler/bound/bound_backend.h"

namespace distile {

const std::vector<const BoundBackend *> &bound_backends() {
    static const std::vector<const BoundBackend *> all = {&cpu_bound_backend(), &cuda_bound_backend(),
                                                          &opencl_bound_backend()};
    return all;
}

const BoundBackend &bound_backend(const std::string &name) {
    const Backend &backend = get_backend(name);
    for (const BoundBackend *bound : bound_backends()) {
        if (&bound->backend == &backend) {
            return *bound;
        }
    }
    throw FileError("there is no bound for the backend " + quote(name) + ", so its schedules cannot be ranked");
}

}  // namespace distile
