#include "runtime/stage/stage.h"
#include "runtime/base/context.h"
#include "runtime/base/device.h"
#include "runtime/stage/check_stage.h"

namespace distile {

void Device::run_stage(const Stage &) {
    throw Failure{fail(&context, DISTILE_ERROR_UNSUPPORTED_DEVICE,
                       "distile_run_stage: stages run on NVIDIA GPUs of compute capability 9.0; call the layers one by "
                       "one here")};
}

}  // namespace distile

using namespace distile;

extern "C" {

distile_status distile_run_stage(distile_context *context, const distile_stage_args *args) {
    constexpr auto check = [](distile_context *, const char *, const distile_stage_args &) { return DISTILE_OK; };
    return call_with(context, "distile_run_stage", args, +check,
                     [&] { context->device->run_stage(checked_stage(context, *args)); });
}

}  // extern "C"
