#include "cuda_session.h"
#include "tensors.h"
#include <dlfcn.h>

namespace distile::python {

namespace {

/** PyTorch's function with this name. It is looked up, because PyTorch for CPUs lacks it. */
void *current_stream(int32_t device_index) {
    using Function = AOTITorchError (*)(int32_t, void **);
    static const auto function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream"));
    void *stream = nullptr;
    if (!function || function(device_index, &stream) != 0) {
        fail("this PyTorch does not tell its current CUDA stream");
    }
    return stream;
}

}  // namespace

Context make_cuda_context_of(int32_t device_index) {
    distile_cuda_options cuda{};
    cuda.device = device_index;
    cuda.stream = current_stream(device_index);
    cuda.choose_on_device = 1;
    distile_context *context = nullptr;
    check(distile_cuda_context_create(nullptr, &cuda, &context), nullptr);
    return Context(context);
}

void follow_stream(distile_context *context, int32_t device_index) {
    check(distile_cuda_set_stream(context, current_stream(device_index)), context);
}

}  // namespace distile::python
