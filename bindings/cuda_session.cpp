#include "cuda_session.h"
#include "errors.h"

namespace distile::bindings {

Context make_cuda_context_of(int32_t device_index, void *stream, distile_math math) {
    distile_context_options options{};
    options.math = math;
    distile_cuda_options cuda{};
    cuda.device = device_index;
    cuda.stream = stream;
    cuda.choose_on_device = 1;
    distile_context *context = nullptr;
    check(distile_cuda_context_create(&options, &cuda, &context), nullptr);
    return Context(context);
}

void follow_stream(distile_context *context, void *stream) {
    check(distile_cuda_set_stream(context, stream), context);
}

}  // namespace distile::bindings
