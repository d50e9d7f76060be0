// Functions for contexts of an OpenCL device.
#include "runtime/opencl/opencl_device.h"
#include <algorithm>
#include <vector>

using namespace distile;

namespace {

/** The device of a context. If there is none, stores a message and returns null. */
OpenClDevice *opencl_device_of(distile_context &context, const char *call) {
    if (context.device->kind() != DISTILE_OPENCL) {
        fail(&context, DISTILE_ERROR_OTHER_DEVICE, "%s: the context is not for an OpenCL device", call);
        return nullptr;
    }
    return &static_cast<OpenClDevice &>(*context.device);
}

std::unique_ptr<Device> open_device(distile_context &context, const distile_opencl_options &options) {
    if (!is_reserved_zero(options.reserved)) {
        throw Failure{fail(&context, DISTILE_ERROR_BAD_VALUE, "a reserved field of the options is not 0")};
    }
    LibraryFailure missing{};
    const OpenClLibrary *library = load_opencl(missing);
    if (!library) {
        throw Failure{fail(&context, missing.status, "%s", missing.message.c_str())};
    }
    auto device = std::make_unique<OpenClDevice>(context, *library);
    device->open(options);
    return device;
}

/** Runs the body with the device of a context, which must be for OpenCL. */
template<typename Body> distile_status with_device(distile_context *context, const char *call, const Body &body) {
    if (!context) {
        return fail_null(call, "context");
    }
    OpenClDevice *device = opencl_device_of(*context, call);
    return !device ? DISTILE_ERROR_OTHER_DEVICE : guarded(context, call, [&] { return body(*device); });
}

}  // namespace

extern "C" {

distile_status distile_opencl_context_create(const distile_context_options *options,
                                             const distile_opencl_options *opencl, distile_context **context) {
    return create_context(
        "distile_opencl_context_create", options,
        [&](distile_context &made) { return open_device(made, opencl ? *opencl : distile_opencl_options{}); }, context);
}

void *distile_opencl_queue(const distile_context *context) {
    return context && context->device->kind() == DISTILE_OPENCL ? context->device->stream() : nullptr;
}

distile_status distile_opencl_map(distile_context *context, void *buffer, void **address) {
    constexpr const char *call = "distile_opencl_map";
    return with_device(context, call, [&](OpenClDevice &device) {
        const distile_status status =
            check_pointers(context, call, {{buffer, "buffer"}, {address, "pointer to the address"}});
        if (status != DISTILE_OK) {
            return status;
        }
        const OpenClLibrary &library = device.library;
        auto *const memory = static_cast<cl_mem>(buffer);
        cl_mem_object_type type = 0;
        cl_context owner = nullptr;
        size_t bytes = 0;
        const bool known =
            library.clGetMemObjectInfo(memory, CL_MEM_TYPE, sizeof(type), &type, nullptr) == CL_SUCCESS &&
            library.clGetMemObjectInfo(memory, CL_MEM_CONTEXT, sizeof(cl_context), &owner, nullptr) == CL_SUCCESS &&
            library.clGetMemObjectInfo(memory, CL_MEM_SIZE, sizeof(bytes), &bytes, nullptr) == CL_SUCCESS;
        if (!known || type != CL_MEM_OBJECT_BUFFER || owner != device.space->context) {
            return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: the cl_mem is not a buffer of the context's cl_context",
                        call);
        }
        device.check(library.clRetainMemObject(memory), "clRetainMemObject");
        *address = device.space->map(memory, bytes);
        return DISTILE_OK;
    });
}

distile_status distile_opencl_unmap(distile_context *context, void *address) {
    constexpr const char *call = "distile_opencl_unmap";
    return with_device(context, call, [&](OpenClDevice &device) {
        return !address || device.space->unmap(address)
                   ? DISTILE_OK
                   : fail(context, DISTILE_ERROR_BAD_VALUE, "%s: distile_opencl_map did not return this address", call);
    });
}

distile_status distile_opencl_buffer(distile_context *context, const void *address, void **buffer, size_t *offset) {
    constexpr const char *call = "distile_opencl_buffer";
    return with_device(context, call, [&](OpenClDevice &device) {
        const distile_status status = check_pointers(
            context, call,
            {{address, "address"}, {buffer, "pointer to the buffer"}, {offset, "pointer to the offset"}});
        if (status != DISTILE_OK) {
            return status;
        }
        const Place place = device.place_of(address, "pointer");
        *buffer = place.buffer;
        *offset = static_cast<size_t>(place.offset);
        return DISTILE_OK;
    });
}

distile_status distile_opencl_wait(distile_context *context, void *const *events, int32_t num_events) {
    constexpr const char *call = "distile_opencl_wait";
    return with_device(context, call, [&](OpenClDevice &device) {
        if (!events) {
            return fail_null(context, call, "array of events");
        }
        if (num_events < 1) {
            return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: num_events is %d; it must be at least 1", call,
                        num_events);
        }
        std::vector<cl_event> list;
        for (int32_t i = 0; i < num_events; i++) {
            list.push_back(static_cast<cl_event>(events[i]));
        }
        device.check(device.library.clEnqueueBarrierWithWaitList(device.queue, static_cast<cl_uint>(list.size()),
                                                                 list.data(), nullptr),
                     "clEnqueueBarrierWithWaitList");
        return DISTILE_OK;
    });
}

distile_status distile_opencl_signal(distile_context *context, void **event) {
    constexpr const char *call = "distile_opencl_signal";
    return with_device(context, call, [&](OpenClDevice &device) {
        if (!event) {
            return fail_null(context, call, "pointer to the event");
        }
        cl_event made = nullptr;
        device.check(device.library.clEnqueueMarkerWithWaitList(device.queue, 0, nullptr, &made),
                     "clEnqueueMarkerWithWaitList");
        *event = made;
        return DISTILE_OK;
    });
}

}  // extern "C"
