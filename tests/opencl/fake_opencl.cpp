// A loader with devices that compute nothing, built as libOpenCL.so.1.
#include "tests/opencl/fake_opencl.h"
#define CL_TARGET_OPENCL_VERSION 120
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

/** An object behind a handle. */
struct Object {
    int64_t references = 1;
    cl_context context = nullptr;
    cl_command_queue_properties properties = 0;
    std::vector<unsigned char> memory;
};

struct Fake {
    std::map<std::string, int64_t> settings{{"platforms", 1},       {"devices", 1},      {"minor", 2},
                                            {"items", 1024},        {"local", 32 << 10}, {"kernel_items", 1024},
                                            {"largest", 1LL << 32}, {"gpu", 1}};
    std::map<std::string, int> failures;
    std::map<std::string, int64_t> calls;
    std::map<uintptr_t, Object> objects;
    uintptr_t next = 0x1000;
};

Fake &fake() {
    static Fake state;
    return state;
}

cl_int enter(const char *function) {
    fake().calls[function]++;
    for (const char *name : {function, "*"}) {
        const auto found = fake().failures.find(name);
        if (found != fake().failures.end() && found->second != 0) {
            return found->second;
        }
    }
    return CL_SUCCESS;
}

template<typename Handle> Object *object_of(Handle handle) {
    const auto found = fake().objects.find(reinterpret_cast<uintptr_t>(handle));
    return found == fake().objects.end() ? nullptr : &found->second;
}

template<typename Handle> Handle make(const char *function, cl_int *result, const Object &object = {}) {
    const cl_int entered = enter(function);
    if (result) {
        *result = entered;
    }
    if (entered != CL_SUCCESS) {
        return nullptr;
    }
    fake().next += 16;
    fake().objects[fake().next] = object;
    return reinterpret_cast<Handle>(fake().next);
}

template<typename Handle> cl_int retain(const char *function, Handle handle, cl_int invalid) {
    const cl_int result = enter(function);
    Object *object = object_of(handle);
    if (result == CL_SUCCESS && object) {
        object->references++;
    }
    return result != CL_SUCCESS ? result : object ? CL_SUCCESS : invalid;
}

/** Never fails on demand, because nobody could do anything about it. */
template<typename Handle> cl_int release(const char *function, Handle handle, cl_int invalid) {
    fake().calls[function]++;
    Object *object = object_of(handle);
    if (object && --object->references == 0) {
        fake().objects.erase(reinterpret_cast<uintptr_t>(handle));
    }
    return object ? CL_SUCCESS : invalid;
}

cl_int give(const void *from, size_t size, size_t room, void *to, size_t *size_ret) {
    if (size_ret) {
        *size_ret = size;
    }
    if (to) {
        std::memcpy(to, from, std::min(size, room));
    }
    return CL_SUCCESS;
}

template<typename Value> cl_int give(const Value &value, size_t room, void *to, size_t *size_ret) {
    return give(&value, sizeof(Value), room, to, size_ret);
}

cl_int give_text(const std::string &text, size_t room, void *to, size_t *size_ret) {
    return give(text.c_str(), text.size() + 1, room, to, size_ret);
}

constexpr const char *binary = "a binary";

}  // namespace

extern "C" {

// The names of the parameters are ours.
// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name)

void fake_opencl_set(const char *what, int64_t value) {
    fake().settings[what] = value;
}

void fake_opencl_fail(const char *function, int result) {
    fake().failures[function] = result;
}

int64_t fake_opencl_count(const char *what) {
    if (std::strcmp(what, "alive") != 0) {
        return fake().calls[what];
    }
    int64_t references = 0;
    for (const auto &[handle, object] : fake().objects) {
        references += object.references;
    }
    return references;
}

cl_int clGetPlatformIDs(cl_uint, cl_platform_id *platforms, cl_uint *num) {
    const cl_int result = enter("clGetPlatformIDs");
    if (result != CL_SUCCESS) {
        return result;
    }
    const auto count = static_cast<cl_uint>(fake().settings["platforms"]);
    if (count == 0) {
        return -1001;
    }
    if (num) {
        *num = count;
    }
    for (cl_uint i = 0; platforms && i < count; i++) {
        platforms[i] = reinterpret_cast<cl_platform_id>(static_cast<uintptr_t>(i + 1));
    }
    return CL_SUCCESS;
}

cl_int clGetDeviceIDs(cl_platform_id, cl_device_type, cl_uint, cl_device_id *devices, cl_uint *num) {
    const cl_int result = enter("clGetDeviceIDs");
    if (result != CL_SUCCESS) {
        return result;
    }
    const auto count = static_cast<cl_uint>(fake().settings["devices"]);
    if (num) {
        *num = count;
    }
    for (cl_uint i = 0; devices && i < count; i++) {
        devices[i] = reinterpret_cast<cl_device_id>(static_cast<uintptr_t>(i + 1));
    }
    return count == 0 ? CL_DEVICE_NOT_FOUND : CL_SUCCESS;
}

cl_int clGetDeviceInfo(cl_device_id device, cl_device_info which, size_t room, void *to, size_t *size_ret) {
    const cl_int result = enter("clGetDeviceInfo");
    if (result != CL_SUCCESS) {
        return result;
    }
    switch (which) {
    case CL_DEVICE_TYPE: {
        const bool is_gpu = reinterpret_cast<uintptr_t>(device) == static_cast<uintptr_t>(fake().settings["gpu"]);
        return give<cl_device_type>(is_gpu ? CL_DEVICE_TYPE_GPU : CL_DEVICE_TYPE_CPU, room, to, size_ret);
    }
    case CL_DEVICE_VERSION:
        return give_text("OpenCL 1." + std::to_string(fake().settings["minor"]) + " fake", room, to, size_ret);
    case CL_DEVICE_NAME:
        return give_text("fake device", room, to, size_ret);
    case CL_DRIVER_VERSION:
        return give_text("1", room, to, size_ret);
    case CL_DEVICE_EXTENSIONS:
        return give_text("cl_khr_byte_addressable_store", room, to, size_ret);
    case CL_DEVICE_MAX_COMPUTE_UNITS:
        return give(cl_uint{4}, room, to, size_ret);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
        return give(static_cast<size_t>(fake().settings["items"]), room, to, size_ret);
    case CL_DEVICE_LOCAL_MEM_SIZE:
        return give(static_cast<cl_ulong>(fake().settings["local"]), room, to, size_ret);
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
        return give(static_cast<cl_ulong>(fake().settings["largest"]), room, to, size_ret);
    default:
        return CL_INVALID_VALUE;
    }
}

cl_context clCreateContext(const cl_context_properties *, cl_uint, const cl_device_id *devices,
                           void (*)(const char *, const void *, size_t, void *), void *, cl_int *result) {
    fake().calls["opened"] = devices ? static_cast<int64_t>(reinterpret_cast<uintptr_t>(*devices)) : 0;
    return make<cl_context>("clCreateContext", result);
}

cl_int clRetainContext(cl_context context) {
    return retain("clRetainContext", context, CL_INVALID_CONTEXT);
}

cl_int clReleaseContext(cl_context context) {
    return release("clReleaseContext", context, CL_INVALID_CONTEXT);
}

cl_command_queue clCreateCommandQueue(cl_context context, cl_device_id, cl_command_queue_properties properties,
                                      cl_int *result) {
    Object object;
    object.context = context;
    object.properties = properties;
    return make<cl_command_queue>("clCreateCommandQueue", result, object);
}

cl_int clRetainCommandQueue(cl_command_queue queue) {
    return retain("clRetainCommandQueue", queue, CL_INVALID_COMMAND_QUEUE);
}

cl_int clReleaseCommandQueue(cl_command_queue queue) {
    return release("clReleaseCommandQueue", queue, CL_INVALID_COMMAND_QUEUE);
}

cl_int clGetCommandQueueInfo(cl_command_queue queue, cl_command_queue_info which, size_t room, void *to,
                             size_t *size_ret) {
    const cl_int result = enter("clGetCommandQueueInfo");
    const Object *object = object_of(queue);
    if (result != CL_SUCCESS || !object) {
        return result != CL_SUCCESS ? result : CL_INVALID_COMMAND_QUEUE;
    }
    switch (which) {
    case CL_QUEUE_CONTEXT:
        return give(object->context, room, to, size_ret);
    case CL_QUEUE_DEVICE:
        return give(reinterpret_cast<cl_device_id>(uintptr_t{1}), room, to, size_ret);
    case CL_QUEUE_PROPERTIES:
        return give(object->properties, room, to, size_ret);
    default:
        return CL_INVALID_VALUE;
    }
}

cl_mem clCreateBuffer(cl_context context, cl_mem_flags, size_t size, void *content, cl_int *result) {
    Object object;
    object.context = context;
    if (size <= static_cast<size_t>(fake().settings["largest"])) {
        object.memory.resize(size);
    }
    if (content) {
        std::memcpy(object.memory.data(), content, size);
    }
    return make<cl_mem>("clCreateBuffer", result, object);
}

cl_int clRetainMemObject(cl_mem buffer) {
    return retain("clRetainMemObject", buffer, CL_INVALID_MEM_OBJECT);
}

cl_int clReleaseMemObject(cl_mem buffer) {
    return release("clReleaseMemObject", buffer, CL_INVALID_MEM_OBJECT);
}

cl_int clGetMemObjectInfo(cl_mem buffer, cl_mem_info which, size_t room, void *to, size_t *size_ret) {
    const cl_int result = enter("clGetMemObjectInfo");
    const Object *object = object_of(buffer);
    if (result != CL_SUCCESS || !object) {
        return result != CL_SUCCESS ? result : CL_INVALID_MEM_OBJECT;
    }
    switch (which) {
    case CL_MEM_TYPE:
        return give(cl_mem_object_type{CL_MEM_OBJECT_BUFFER}, room, to, size_ret);
    case CL_MEM_CONTEXT:
        return give(object->context, room, to, size_ret);
    case CL_MEM_SIZE:
        return give(object->memory.size(), room, to, size_ret);
    default:
        return CL_INVALID_VALUE;
    }
}

cl_program clCreateProgramWithSource(cl_context, cl_uint, const char **, const size_t *, cl_int *result) {
    return make<cl_program>("clCreateProgramWithSource", result);
}

cl_program clCreateProgramWithBinary(cl_context, cl_uint, const cl_device_id *, const size_t *sizes,
                                     const unsigned char **binaries, cl_int *status, cl_int *result) {
    const bool known = std::string(reinterpret_cast<const char *>(binaries[0]), sizes[0]) == binary;
    *status = known ? CL_SUCCESS : CL_INVALID_BINARY;
    return make<cl_program>("clCreateProgramWithBinary", result);
}

cl_int clBuildProgram(cl_program, cl_uint, const cl_device_id *, const char *, void (*)(cl_program, void *), void *) {
    return enter("clBuildProgram");
}

cl_int clGetProgramInfo(cl_program, cl_program_info which, size_t room, void *to, size_t *size_ret) {
    const cl_int result = enter("clGetProgramInfo");
    if (result != CL_SUCCESS) {
        return result;
    }
    switch (which) {
    case CL_PROGRAM_NUM_DEVICES:
        return give(cl_uint{1}, room, to, size_ret);
    case CL_PROGRAM_DEVICES:
        return give(reinterpret_cast<cl_device_id>(uintptr_t{1}), room, to, size_ret);
    case CL_PROGRAM_BINARY_SIZES:
        return give(std::strlen(binary), room, to, size_ret);
    case CL_PROGRAM_BINARIES:
        std::memcpy(*static_cast<unsigned char **>(to), binary, std::strlen(binary));
        return CL_SUCCESS;
    default:
        return CL_INVALID_VALUE;
    }
}

cl_int clGetProgramBuildInfo(cl_program, cl_device_id, cl_program_build_info, size_t room, void *to, size_t *size_ret) {
    const cl_int result = enter("clGetProgramBuildInfo");
    return result != CL_SUCCESS ? result : give_text("line 7: no such thing", room, to, size_ret);
}

cl_int clReleaseProgram(cl_program program) {
    return release("clReleaseProgram", program, CL_INVALID_PROGRAM);
}

cl_kernel clCreateKernel(cl_program, const char *, cl_int *result) {
    return make<cl_kernel>("clCreateKernel", result);
}

cl_int clReleaseKernel(cl_kernel kernel) {
    return release("clReleaseKernel", kernel, CL_INVALID_KERNEL);
}

cl_int clSetKernelArg(cl_kernel, cl_uint, size_t, const void *) {
    return enter("clSetKernelArg");
}

cl_int clGetKernelWorkGroupInfo(cl_kernel, cl_device_id, cl_kernel_work_group_info, size_t room, void *to,
                                size_t *size_ret) {
    const cl_int result = enter("clGetKernelWorkGroupInfo");
    return result != CL_SUCCESS ? result
                                : give(static_cast<size_t>(fake().settings["kernel_items"]), room, to, size_ret);
}

cl_int clEnqueueNDRangeKernel(cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *,
                              cl_uint, const cl_event *, cl_event *) {
    return enter("clEnqueueNDRangeKernel");
}

cl_int clEnqueueReadBuffer(cl_command_queue, cl_mem buffer, cl_bool, size_t offset, size_t bytes, void *to, cl_uint,
                           const cl_event *, cl_event *) {
    const cl_int result = enter("clEnqueueReadBuffer");
    if (result == CL_SUCCESS) {
        std::memcpy(to, object_of(buffer)->memory.data() + offset, bytes);
    }
    return result;
}

cl_int clEnqueueCopyBuffer(cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event *,
                           cl_event *) {
    return enter("clEnqueueCopyBuffer");
}

cl_int clEnqueueFillBuffer(cl_command_queue, cl_mem, const void *, size_t, size_t, size_t, cl_uint, const cl_event *,
                           cl_event *) {
    return enter("clEnqueueFillBuffer");
}

cl_int clEnqueueBarrierWithWaitList(cl_command_queue, cl_uint, const cl_event *, cl_event *) {
    return enter("clEnqueueBarrierWithWaitList");
}

cl_int clEnqueueMarkerWithWaitList(cl_command_queue, cl_uint, const cl_event *, cl_event *event) {
    *event = reinterpret_cast<cl_event>(uintptr_t{1});
    return enter("clEnqueueMarkerWithWaitList");
}

cl_int clFinish(cl_command_queue) {
    return enter("clFinish");
}

// NOLINTEND(readability-inconsistent-declaration-parameter-name)

}  // extern "C"
