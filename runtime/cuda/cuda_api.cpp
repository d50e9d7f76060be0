// Functions for contexts of an NVIDIA GPU.
#include "cuda_device.h"
#include "cuda_planner.h"

using namespace distile;

namespace {

/** The GPU of a context. If there is none, stores a message and returns null. */
CudaDevice *cuda_device_of(distile_context &context, const char *call) {
    if (context.device->kind() != DISTILE_CUDA) {
        fail(&context, DISTILE_ERROR_OTHER_DEVICE, "%s: the context is not for an NVIDIA GPU", call);
        return nullptr;
    }
    return &static_cast<CudaDevice &>(*context.device);
}

std::unique_ptr<Device> open_device(distile_context &context, const distile_cuda_options &options) {
    if (!is_reserved_zero(options.reserved)) {
        throw Failure{fail(&context, DISTILE_ERROR_BAD_VALUE, "a reserved field of the options is not 0")};
    }
    DriverFailure missing{};
    const Driver *driver = load_driver(missing);
    if (!driver) {
        throw Failure{fail(&context, missing.status, "%s", missing.message.c_str())};
    }
    auto device = std::make_unique<CudaDevice>(context, *driver);
    device->open(options);
    return device;
}

}  // namespace

extern "C" {

distile_status distile_cuda_context_create(const distile_context_options *options, const distile_cuda_options *cuda,
                                           distile_context **context) {
    return create_context(
        "distile_cuda_context_create", options,
        [&](distile_context &made) { return open_device(made, cuda ? *cuda : distile_cuda_options{}); }, context);
}

distile_status distile_cuda_set_stream(distile_context *context, void *stream) {
    if (!context) {
        return fail_null("distile_cuda_set_stream", "context");
    }
    CudaDevice *device = cuda_device_of(*context, "distile_cuda_set_stream");
    if (!device) {
        return DISTILE_ERROR_OTHER_DEVICE;
    }
    device->caller_stream = static_cast<CUstream>(stream);
    return DISTILE_OK;
}

distile_status distile_cuda_planner_join(distile_planner *planner) {
    if (!planner) {
        return fail_null("distile_cuda_planner_join", "planner");
    }
    if (!cuda_device_of(planner->context, "distile_cuda_planner_join")) {
        return DISTILE_ERROR_OTHER_DEVICE;
    }
    return guarded(&planner->context, [&] {
        static_cast<CudaPlanner *>(planner)->join();
        return DISTILE_OK;
    });
}

}  // extern "C"
