// Functions for contexts of an NVIDIA GPU.
#include "runtime/cuda/cuda_chooser.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_planner.h"
#include "runtime/cuda/graph_switch.h"
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

distile_status check_switch(distile_context *context, const char *call, const distile_cuda_switch_args &args) {
    const auto refuse = [&](const char *what) { return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: %s", call, what); };
    if (args.num_graphs < 2 || args.num_graphs > DISTILE_MOST_WAYS) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: num_graphs is %d; it must be 2 to %d", call, args.num_graphs,
                    DISTILE_MOST_WAYS);
    }
    if (args.num_masks < 0 || args.num_masks > DISTILE_MOST_SWITCH_MASKS) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: num_masks is %d; it must be 0 to %d", call, args.num_masks,
                    DISTILE_MOST_SWITCH_MASKS);
    }
    if (!std::isfinite(args.budget) || args.budget < 0 || args.budget > 1) {
        return refuse("budget is a share, from 0 to 1");
    }
    if (!is_reserved_zero(args.reserved)) {
        return refuse("a reserved field of the arguments is not 0");
    }
    if (!args.graphs || (args.num_masks > 0 && (!args.masks || !args.mask_bytes))) {
        return fail_null(context, call, !args.graphs ? "graphs" : "masks");
    }
    for (int32_t way = 0; way < args.num_graphs; way++) {
        if (!args.graphs[way]) {
            return fail_null(context, call, "graph");
        }
    }
    constexpr int64_t most_bytes = int64_t{1} << 40;
    for (int32_t mask = 0; mask < args.num_masks; mask++) {
        if (!args.masks[mask]) {
            return fail_null(context, call, "mask");
        }
        if (args.mask_bytes[mask] < 1 || args.mask_bytes[mask] > most_bytes) {
            return refuse("a mask has 1 to 2^40 bytes");
        }
    }
    return DISTILE_OK;
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

distile_status distile_cuda_switch_create(distile_context *context, const distile_cuda_switch_args *args,
                                          distile_cuda_switch **result) {
    constexpr const char *call = "distile_cuda_switch_create";
    if (!context) {
        return fail_null(call, "context");
    }
    CudaDevice *device = cuda_device_of(*context, call);
    if (!device) {
        return DISTILE_ERROR_OTHER_DEVICE;
    }
    if (!args || !result) {
        return fail_null(context, call, !args ? "arguments" : "pointer to the switch");
    }
    const distile_status status = check_switch(context, call, *args);
    return status != DISTILE_OK ? status : guarded(context, call, [&] {
        for (int32_t mask = 0; mask < args->num_masks; mask++) {
            device->check_pointer(args->masks[mask], 1, "mask");
        }
        *result = std::make_unique<distile_cuda_switch>(*device, *args).release();
        return DISTILE_OK;
    });
}

distile_status distile_cuda_switch_launch(distile_cuda_switch *object) {
    constexpr const char *call = "distile_cuda_switch_launch";
    if (!object) {
        return fail_null(call, "switch");
    }
    return guarded(&object->context, call, [&] {
        object->launch();
        return DISTILE_OK;
    });
}

distile_status distile_cuda_switch_set(distile_cuda_switch *object, int32_t way) {
    constexpr const char *call = "distile_cuda_switch_set";
    if (!object) {
        return fail_null(call, "switch");
    }
    if (way < DISTILE_WAY_SETTLED || way >= object->num_graphs()) {
        return fail(&object->context, DISTILE_ERROR_BAD_VALUE, "%s: way is %d; it must be %d to %d", call, way,
                    DISTILE_WAY_SETTLED, object->num_graphs() - 1);
    }
    return guarded(&object->context, call, [&] {
        object->set_mode(way);
        return DISTILE_OK;
    });
}

distile_status distile_cuda_switch_get_info(distile_cuda_switch *object, distile_cuda_switch_info *info) {
    constexpr const char *call = "distile_cuda_switch_get_info";
    if (!object) {
        return fail_null(call, "switch");
    }
    if (!info) {
        return fail_null(&object->context, call, "pointer to the information");
    }
    return guarded(&object->context, call, [&] {
        *info = object->info();
        return DISTILE_OK;
    });
}

void distile_cuda_switch_destroy(distile_cuda_switch *object) {
    if (object) {
        destroy(object->context, object);
    }
}

}  // extern "C"
