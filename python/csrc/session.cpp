#include "session.h"
#include "bindings/cuda_session.h"
#include <dlfcn.h>
#include <memory>

namespace distile::python {

namespace {

/** Runs a loop of distile in PyTorch's threads, so that the two libraries never compete for cores. */
void parallel_for(void *, distile_task task, void *closure, int32_t count) {
    struct Loop {
        distile_task task;
        void *closure;
    } loop{task, closure};
    // Fails only if a task throws, and none does.
    (void)torch_parallel_for(
        0, count, 1,
        [](int64_t begin, int64_t end, void *context) {
            const auto &own = *static_cast<const Loop *>(context);
            for (int64_t i = begin; i < end; i++) {
                own.task(own.closure, static_cast<int32_t>(i));
            }
        },
        &loop);
}

Context make_cpu_context(int32_t threads) {
    distile_context_options options{};
    options.threads = threads;
    options.parallel_for = parallel_for;
    return make_context(options);
}

/** PyTorch's current stream, by a function that is looked up, because PyTorch for CPUs lacks it. */
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

Session::Session(int32_t device_index, int32_t threads)
    : bindings::Session(device_index < 0 ? make_cpu_context(threads)
                                         : bindings::make_cuda_context_of(device_index, current_stream(device_index))),
      device_index_(device_index), threads_(threads) {
}

void Session::follow_current_stream() {
    if (device_index_ >= 0) {
        bindings::follow_stream(context(), current_stream(device_index_));
    }
}

Session &Session::of(const Tensor &tensor) {
    thread_local std::unordered_map<int32_t, std::unique_ptr<Session>> sessions;
    if (tensor.is_cpu()) {
        std::unique_ptr<Session> &session = sessions[-1];
        const auto threads = static_cast<int32_t>(torch::stable::get_num_threads());
        if (!session || session->threads_ != threads) {
            session.reset();
            session = std::make_unique<Session>(-1, threads);
        }
        return *session;
    }
    const int32_t index = tensor.get_device_index();
    std::unique_ptr<Session> &session = sessions[index];
    if (!session) {
        session = std::make_unique<Session>(index, 0);
    }
    session->follow_current_stream();
    return *session;
}

distile_mask *Session::mask(const Tensor &bytes, int32_t role) {
    const ScalarType type = bytes.scalar_type();
    const auto sizes = bytes.sizes();
    if ((type != ScalarType::Bool && type != ScalarType::Byte) || (sizes.size() != 3 && sizes.size() != 2)) {
        fail("a mask is a tensor of type bool or uint8 with the dimensions [N, H, W], or [N, T] for tokens");
    }
    if (bytes.numel() == 0) {
        fail("the mask has no pixels");
    }
    const bool tokens = sizes.size() == 2;
    const Tensor plain = bytes.is_contiguous() ? bytes : torch::stable::contiguous(bytes);
    return bindings::Session::mask(
        {static_cast<const uint8_t *>(plain.const_data_ptr()), sizes[0], tokens ? 1 : sizes[1], sizes[tokens ? 1 : 2]},
        role);
}

}  // namespace distile::python
