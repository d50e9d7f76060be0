#include "runtime/opencl/library.h"
#include <dlfcn.h>

namespace distile {

namespace {

struct Loaded {
    OpenClLibrary library{};
    LibraryFailure failure{DISTILE_OK, ""};

    Loaded() {
        void *handle = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!handle) {
            // Phones have no version in the name.
            handle = dlopen("libOpenCL.so", RTLD_NOW | RTLD_LOCAL);
        }
        if (!handle) {
            const char *error = dlerror();
            failure = {DISTILE_ERROR_NO_DRIVER,
                       std::string("cannot load the OpenCL loader: ") + (error ? error : "unknown reason")};
            return;
        }
#define DISTILE_LOAD(name) load(handle, #name, library.name);
        DISTILE_OPENCL_FUNCTIONS(DISTILE_LOAD)
#undef DISTILE_LOAD
    }

private:
    template<typename Function> void load(void *handle, const char *name, Function &function) {
        function = reinterpret_cast<Function>(dlsym(handle, name));
        if (!function) {
            failure = {DISTILE_ERROR_OLD_DRIVER, std::string("the OpenCL loader is too old: it lacks ") + name};
        }
    }
};

/** What a result means. Results without a row are defects of a call or of the driver. */
constexpr struct {
    cl_int result;
    const char *name;
    distile_status status;
} results[] = {
    {CL_SUCCESS, "CL_SUCCESS", DISTILE_OK},
    {CL_DEVICE_NOT_FOUND, "CL_DEVICE_NOT_FOUND", DISTILE_ERROR_NO_GPU},
    {CL_DEVICE_NOT_AVAILABLE, "CL_DEVICE_NOT_AVAILABLE", DISTILE_ERROR_DEVICE_LOST},
    {CL_COMPILER_NOT_AVAILABLE, "CL_COMPILER_NOT_AVAILABLE", DISTILE_ERROR_UNSUPPORTED_DEVICE},
    {CL_MEM_OBJECT_ALLOCATION_FAILURE, "CL_MEM_OBJECT_ALLOCATION_FAILURE", DISTILE_ERROR_OUT_OF_DEVICE_MEMORY},
    {CL_OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES", DISTILE_ERROR_OUT_OF_DEVICE_MEMORY},
    {CL_OUT_OF_HOST_MEMORY, "CL_OUT_OF_HOST_MEMORY", DISTILE_ERROR_OUT_OF_MEMORY},
    {CL_BUILD_PROGRAM_FAILURE, "CL_BUILD_PROGRAM_FAILURE", DISTILE_ERROR_UNSUPPORTED_DEVICE},
    {CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
     DISTILE_ERROR_DEVICE_LOST},
    {CL_INVALID_VALUE, "CL_INVALID_VALUE", DISTILE_ERROR_KERNEL},
    {CL_INVALID_DEVICE, "CL_INVALID_DEVICE", DISTILE_ERROR_NO_GPU},
    {CL_INVALID_CONTEXT, "CL_INVALID_CONTEXT", DISTILE_ERROR_DEVICE_LOST},
    {CL_INVALID_COMMAND_QUEUE, "CL_INVALID_COMMAND_QUEUE", DISTILE_ERROR_DEVICE_LOST},
    {CL_INVALID_MEM_OBJECT, "CL_INVALID_MEM_OBJECT", DISTILE_ERROR_KERNEL},
    {CL_INVALID_BUFFER_SIZE, "CL_INVALID_BUFFER_SIZE", DISTILE_ERROR_OUT_OF_DEVICE_MEMORY},
    {CL_INVALID_BINARY, "CL_INVALID_BINARY", DISTILE_ERROR_UNSUPPORTED_DEVICE},
    {CL_INVALID_KERNEL_NAME, "CL_INVALID_KERNEL_NAME", DISTILE_ERROR_KERNEL},
    {CL_INVALID_WORK_GROUP_SIZE, "CL_INVALID_WORK_GROUP_SIZE", DISTILE_ERROR_UNSUPPORTED_DEVICE},
    {CL_INVALID_EVENT, "CL_INVALID_EVENT", DISTILE_ERROR_BAD_VALUE},
    {-1001, "CL_PLATFORM_NOT_FOUND_KHR", DISTILE_ERROR_NO_DRIVER},
};

}  // namespace

const OpenClLibrary *load_opencl(LibraryFailure &failure) {
    static const Loaded loaded;
    failure = loaded.failure;
    return failure.status == DISTILE_OK ? &loaded.library : nullptr;
}

const char *opencl_name(cl_int result) {
    for (const auto &row : results) {
        if (row.result == result) {
            return row.name;
        }
    }
    return "an unknown error";
}

distile_status opencl_status(cl_int result) {
    for (const auto &row : results) {
        if (row.result == result) {
            return row.status;
        }
    }
    return DISTILE_ERROR_KERNEL;
}

}  // namespace distile
