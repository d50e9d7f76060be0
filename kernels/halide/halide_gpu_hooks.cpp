/** \file
 * The functions of Halide's CUDA and OpenCL runtimes that generated code calls, forwarded to the distile_gpu_hooks
 * behind the user_context: no context look-up, no register limit, no global state, and all pointers are already device
 * pointers. Compiled into the PolyKernels that run on a GPU, so they do not need Halide's own runtimes of GPUs.
 */
#include "kernels/call.h"
#include <HalideRuntime.h>
#include <HalideRuntimeCuda.h>
#include <HalideRuntimeOpenCL.h>
#include <distile/polykernel.h>

namespace {

/** More than any of our kernels has. */
constexpr int most_arguments = 64;

distile_hooks *hooks_of(void *user_context) {
    return static_cast<distile_hooks *>(user_context);
}

// State would be shared by all contexts, so there is none: the code's address identifies the module.
int use_module(void *user_context, const char *src, int size) {
    distile_hooks *hooks = hooks_of(user_context);
    if (!hooks->gpu) {
        hooks->report(hooks, "the context has no GPU");
        return halide_error_code_gpu_device_error;
    }
    return hooks->gpu->use_module(hooks, src, static_cast<size_t>(size));
}

int refuse_arguments(distile_hooks *hooks) {
    hooks->report(hooks, "a kernel has too many arguments");
    return halide_error_code_gpu_device_error;
}

}  // namespace

extern "C" {

int halide_cuda_initialize_kernels(void *user_context, void **, const char *src, int size) {
    return use_module(user_context, src, size);
}

int halide_opencl_initialize_kernels(void *user_context, void **, const char *src, int size) {
    return use_module(user_context, src, size);
}

void halide_cuda_finalize_kernels(void *, void *) {
}

void halide_opencl_finalize_kernels(void *, void *) {
}

// Halide's declaration has non-const parameters.

// NOLINTBEGIN(readability-non-const-parameter)
int halide_cuda_run(void *user_context, void *, const char *entry_name, int blocksX, int blocksY, int blocksZ,
                    int threadsX, int threadsY, int threadsZ, int shared_mem_bytes, size_t arg_sizes[], void *args[],
                    int8_t arg_is_buffer[]) {
    distile_hooks *hooks = hooks_of(user_context);
    void *arguments[most_arguments];
    for (int i = 0; arg_sizes[i] != 0; i++) {
        if (i == most_arguments) {
            return refuse_arguments(hooks);
        }
        arguments[i] = arg_is_buffer[i] ? &static_cast<halide_buffer_t *>(args[i])->device : args[i];
    }
    const distile_gpu_launch launch = {
        entry_name, {blocksX, blocksY, blocksZ}, {threadsX, threadsY, threadsZ}, shared_mem_bytes, arguments, 0, 0};
    return hooks->gpu->launch(hooks, &launch);
}

int halide_opencl_run(void *user_context, void *, const char *entry_name, int blocksX, int blocksY, int blocksZ,
                      int threadsX, int threadsY, int threadsZ, int shared_mem_bytes, size_t arg_sizes[], void *args[],
                      int8_t arg_is_buffer[]) {
    distile_hooks *hooks = hooks_of(user_context);
    distile_opencl_argument values[most_arguments];
    void *arguments[most_arguments];
    int count = 0;
    for (; arg_sizes[count] != 0; count++) {
        if (count + 2 > most_arguments) {
            return refuse_arguments(hooks);
        }
        const bool is_buffer = arg_is_buffer[count] != 0;
        values[count] = {is_buffer ? &static_cast<halide_buffer_t *>(args[count])->device : args[count],
                         arg_sizes[count], is_buffer ? 1 : 0};
        arguments[count] = &values[count];
    }
    arguments[count] = nullptr;
    const distile_gpu_launch launch = {
        entry_name, {blocksX, blocksY, blocksZ}, {threadsX, threadsY, threadsZ}, shared_mem_bytes, arguments, 0, 0};
    return hooks->gpu->launch(hooks, &launch);
}
// NOLINTEND(readability-non-const-parameter)

const halide_device_interface_t *halide_cuda_device_interface() {
    return nullptr;
}

const halide_device_interface_t *halide_opencl_device_interface() {
    return nullptr;
}

/** Called by code that schedules/gpu_passes.h made: the element of its OpenCL buffer at which a tensor starts. */
int32_t distile_buffer_offset(void *user_context, const halide_buffer_t *buffer) {
    distile_hooks *hooks = hooks_of(user_context);
    return static_cast<int32_t>(hooks->gpu->offset_of(hooks, buffer->device) /
                                static_cast<uint64_t>(buffer->type.bytes()));
}

int halide_device_malloc(void *user_context, halide_buffer_t *buf, const halide_device_interface_t *) {
    if (buf->device != 0) {
        // Generated code calls this before every kernel that uses the buffer.
        return 0;
    }
    distile_hooks *hooks = hooks_of(user_context);
    // The code indexes elements with 32 bits.
    constexpr uint64_t most_elements = (uint64_t{1} << 31) - 1;
    uint64_t elements = 1;
    for (int i = 0; i < buf->dimensions; i++) {
        elements *= static_cast<uint64_t>(buf->dim[i].extent);
        if (buf->dim[i].extent < 0 || elements > most_elements) {
            hooks->report(hooks, "too many pixels: their partial sums exceed 2^31 - 1 elements");
            return halide_error_code_buffer_allocation_too_large;
        }
    }
    return hooks->gpu->allocate(hooks, elements * static_cast<uint64_t>(buf->type.bytes()), &buf->device);
}

int halide_device_free(void *, halide_buffer_t *buf) {
    buf->device = 0;
    return 0;
}

void halide_device_free_as_destructor(void *, void *obj) {
    static_cast<halide_buffer_t *>(obj)->device = 0;
}

int halide_copy_to_device(void *, halide_buffer_t *, const halide_device_interface_t *) {
    return 0;
}

}  // extern "C"
