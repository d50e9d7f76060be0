#include "bindings/cuda_session.h"
#include "bindings/errors.h"

namespace distile::bindings {

namespace {

constexpr const char *reason = "this build has no part for NVIDIA GPUs";

}  // namespace

Context make_cuda_context_of(int32_t, void *, distile_math, Chooser) {
    fail(reason);
}

uint64_t capture_of(void *) {
    return 0;
}

void follow_stream(distile_context *, void *) {
    fail(reason);
}

SharedSwitch make_switch(const Context &, const distile_cuda_switch_args &) {
    fail(reason);
}

void launch_switch(const Context &, const SharedSwitch &) {
    fail(reason);
}

void set_switch(const Context &, const SharedSwitch &, int32_t) {
    fail(reason);
}

distile_cuda_switch_info info_of(const Context &, const SharedSwitch &) {
    fail(reason);
}

}  // namespace distile::bindings
