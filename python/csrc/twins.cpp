#include "python/csrc/twins.h"
#include <atomic>

namespace distile::python {

namespace {

std::atomic<bool> defined{false};

}  // namespace

void define_twins() {
    defined = true;
}

const distile_polykernel *polykernel_of(const bindings::OperatorKey &key) {
    const distile_polykernel *found = bindings::find_polykernel(key);
    if (!found && !defined) {
        bindings::load_cached_polykernels();
        found = bindings::find_polykernel(key);
    }
    return found;
}

bool has_twins() {
    return defined;
}

}  // namespace distile::python
