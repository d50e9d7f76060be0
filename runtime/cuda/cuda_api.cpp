// Functions for contexts of an NVIDIA GPU.
#include "runtime/cuda/cuda_chooser.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_planner.h"
#include "runtime/dispatch/kernel.h"
#include <cmath>

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
    if (options.choose_on_device != 0 && options.choose_on_device != 1) {
        throw Failure{fail(&context, DISTILE_ERROR_BAD_VALUE, "choose_on_device is %d; it must be 0 or 1",
                           options.choose_on_device)};
    }
    if (!std::isfinite(options.launch_us)) {
        throw Failure{fail(&context, DISTILE_ERROR_BAD_VALUE, "launch_us is not a finite number")};
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

distile_status distile_cuda_last_choice(distile_kernel *kernel, distile_choice *choice) {
    constexpr const char *call = "distile_cuda_last_choice";
    if (!kernel) {
        return fail_null(call, "kernel");
    }
    distile_context *context = &kernel->context;
    const CudaDevice *device = cuda_device_of(*context, call);
    if (!device) {
        return DISTILE_ERROR_OTHER_DEVICE;
    }
    if (!choice) {
        return fail_null(context, call, "pointer to the choice");
    }
    return guarded(context, call, [&] {
        if (device->is_capturing()) {
            return fail(context, DISTILE_ERROR_CAPTURING, "%s: the call would wait during graph capture", call);
        }
        CudaChooser::Chosen chosen{-1, 0};
        if (kernel->chooser) {
            chosen = static_cast<const CudaChooser &>(*kernel->chooser).last();
        }
        if (chosen.variant < 0) {
            return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: the GPU never chose a variant of '%s'", call,
                        kernel->polykernel.name);
        }
        *choice = kernel->choice_of(chosen.variant, -1, chosen.tiles);
        return DISTILE_OK;
    });
}

distile_status distile_cuda_planner_join(distile_planner *planner) {
    constexpr const char *call = "distile_cuda_planner_join";
    if (!planner) {
        return fail_null(call, "planner");
    }
    if (!cuda_device_of(planner->context, call)) {
        return DISTILE_ERROR_OTHER_DEVICE;
    }
    return guarded(&planner->context, call, [&] {
        static_cast<CudaPlanner *>(planner)->join();
        return DISTILE_OK;
    });
}

}  // extern "C"
