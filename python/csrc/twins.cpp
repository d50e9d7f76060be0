#include "twins.h"
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

void check_twins() {
    if (!defined) {
        fail(
            "no PolyKernel computes this operator, and in a program without Python nothing else does: compile one with "
            "distile.build() in Python, and let $DISTILE_CACHE name its cache folder here");
    }
}

}  // namespace distile::python
