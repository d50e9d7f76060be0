#include "bindings/cuda_session.h"
#include "bindings/errors.h"
#include <dlfcn.h>

namespace distile::bindings {

Context make_cuda_context_of(int32_t device_index, void *stream, distile_math math, Chooser chooser) {
    distile_context_options options{};
    options.math = math;
    distile_cuda_options cuda{};
    cuda.device = device_index;
    cuda.stream = stream;
    cuda.choose_on_device = chooser == Chooser::gpu ? 1 : 0;
    distile_context *context = nullptr;
    check(distile_cuda_context_create(&options, &cuda, &context), nullptr);
    return Context(context);
}

void follow_stream(distile_context *context, void *stream) {
    check(distile_cuda_set_stream(context, stream), context);
}

uint64_t capture_of(void *stream) {
    // The context has loaded the driver. Its function gives a status, of which 1 is a capture, and a number.
    using Function = int (*)(void *, int *, uint64_t *);
    static const auto function = [] {
        void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        return reinterpret_cast<Function>(driver ? dlsym(driver, "cuStreamGetCaptureInfo") : nullptr);
    }();
    int status = 0;
    uint64_t number = 0;
    return function && function(stream, &status, &number) == 0 && status == 1 ? number : 0;
}

SharedSwitch make_switch(const Context &context, const distile_cuda_switch_args &args) {
    distile_cuda_switch *object = nullptr;
    check(distile_cuda_switch_create(context.get(), &args, &object), context.get());
    return CudaSwitch(object);
}

void launch_switch(const Context &context, const SharedSwitch &object) {
    check(distile_cuda_switch_launch(object.get()), context.get());
}

void set_switch(const Context &context, const SharedSwitch &object, int32_t way) {
    check(distile_cuda_switch_set(object.get(), way), context.get());
}

distile_cuda_switch_info info_of(const Context &context, const SharedSwitch &object) {
    distile_cuda_switch_info info{};
    check(distile_cuda_switch_get_info(object.get(), &info), context.get());
    return info;
}

}  // namespace distile::bindings
