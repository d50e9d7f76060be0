#include "python/csrc/session.h"
#include "bindings/cuda_session.h"
#include <algorithm>
#include <atomic>
#include <dlfcn.h>
#include <iterator>
#include <map>
#include <memory>

namespace distile::python {

namespace {

std::atomic<distile_math> wanted_math{DISTILE_MATH_DEFAULT};

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

using CurrentStream = AOTITorchError (*)(int32_t, void **);

/** A function of PyTorch for GPUs, of whose libraries `import torch` shows no symbols to others; null if PyTorch is for
 * CPUs. */
CurrentStream find_current_stream() {
    void *library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return reinterpret_cast<CurrentStream>(library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr);
}

bool have_one_shape(const bindings::MaskBytes &a, const bindings::MaskBytes &b) {
    return a.batch == b.batch && a.height == b.height && a.width == b.width;
}

/** Tensors of inference mode have no version. */
int64_t known_version_of(const Tensor &tensor) {
    return is_inference(tensor) ? -1 : version_of(tensor);
}

}  // namespace

void *current_stream(int32_t device_index) {
    static const CurrentStream function = find_current_stream();
    void *stream = nullptr;
    if (!function || function(device_index, &stream) != 0) {
        fail("this PyTorch does not tell its current CUDA stream");
    }
    return stream;
}

Session::Session(int32_t device_index, int32_t threads, distile_math math)
    : bindings::Session(device_index < 0
                            ? make_cpu_context(threads)
                            : bindings::make_cuda_context_of(device_index, current_stream(device_index), math)),
      device_index_(device_index), threads_(threads), math_(math) {
}

void Session::follow_current_stream() {
    if (device_index_ >= 0) {
        bindings::follow_stream(context(), current_stream(device_index_));
    }
}

Session &Session::of(const Tensor &tensor) {
    // By device and math: a session of another math stays, for graphs that were captured with it.
    thread_local std::map<std::pair<int32_t, distile_math>, std::unique_ptr<Session>> sessions;
    if (tensor.is_cpu()) {
        std::unique_ptr<Session> &session = sessions[{-1, DISTILE_MATH_DEFAULT}];
        const auto threads = static_cast<int32_t>(torch::stable::get_num_threads());
        if (!session || session->threads_ != threads) {
            session.reset();
            session = std::make_unique<Session>(-1, threads, DISTILE_MATH_DEFAULT);
        }
        return *session;
    }
    const int32_t index = tensor.get_device_index();
    const distile_math math = wanted_math;
    std::unique_ptr<Session> &session = sessions[{index, math}];
    if (!session) {
        session = std::make_unique<Session>(index, 0, math);
    }
    session->follow_current_stream();
    return *session;
}

void Session::check_device(const Tensor &tensor, const char *what) const {
    if ((tensor.is_cpu() ? -1 : tensor.get_device_index()) != device_index_) {
        fail(std::string(what) + " is on another device than the input: move it there");
    }
}

void Session::check_mask(const Tensor &bytes, const Ints *wanted) const {
    check_device(bytes, "the mask");
    const ScalarType type = bytes.scalar_type();
    const auto sizes = bytes.sizes();
    if ((type != ScalarType::Bool && type != ScalarType::Byte) || (sizes.size() != 3 && sizes.size() != 2)) {
        fail("a mask is a tensor of type bool or uint8 with the dimensions [N, H, W], or [N, T] for tokens");
    }
    if (wanted && !have_sizes(bytes, *wanted)) {
        fail("the mask is " + text_of({sizes.begin(), sizes.end()}) + ", but the output has the pixels " +
             text_of(*wanted) + ": give one boolean for each");
    }
}

distile_mask *Session::mask(const Tensor &bytes, int32_t role) {
    check_mask(bytes);
    const auto sizes = bytes.sizes();
    if (bytes.numel() == 0) {
        fail("the mask has no pixels");
    }
    const Tensor plain = bytes.is_contiguous() ? bytes : torch::stable::contiguous(bytes);
    const int64_t rows = sizes.size() == 2 ? rows_of_tokens(sizes[1]) : sizes[1];
    const bindings::MaskBytes view{static_cast<const uint8_t *>(plain.const_data_ptr()), sizes[0], rows,
                                   sizes.size() == 2 ? sizes[1] / rows : sizes[2]};
    distile_mask *const fixed = fixed_.empty() ? nullptr : fixed_mask(plain, view);
    return fixed ? fixed : bindings::Session::mask(view, role);
}

void Session::fix_mask(const Tensor &bytes) {
    if (device_index_ >= 0) {
        fixed_.push_back({bytes, known_version_of(bytes), {}});
    }
}

void Session::release_mask(const Tensor &bytes) {
    const auto last = std::find_if(fixed_.rbegin(), fixed_.rend(), [&](const FixedMask &fixed) {
        return fixed.bytes.const_data_ptr() == bytes.const_data_ptr();
    });
    if (last != fixed_.rend()) {
        fixed_.erase(std::next(last).base());
    }
}

void Session::fix_result(bool fixed) {
    fixes_result_ = fixed && device_index_ >= 0;
}

distile_mask *Session::result(int64_t batch, int64_t height, int64_t width) {
    result_.reset();
    if (!fixes_result_) {
        return result_mask(batch, height, width);
    }
    fixes_result_ = false;
    const bindings::MaskBytes view{nullptr, batch, height, width};
    const int32_t role = free_role(view);
    void *const stream = current_stream(device_index_);
    distile_mask *const mask = result_mask(batch, height, width, role);
    result_ = SetMask{view, role, stream, bindings::capture_of(stream), mask};
    return mask;
}

void Session::take_result(const Tensor &bytes) {
    fixed_.erase(
        std::remove_if(fixed_.begin(), fixed_.end(),
                       [&](const FixedMask &fixed) { return fixed.bytes.const_data_ptr() == bytes.const_data_ptr(); }),
        fixed_.end());
    if (result_) {
        fixed_.push_back({bytes, known_version_of(bytes), {*result_}});
        result_.reset();
    }
}

distile_mask *Session::fixed_mask(const Tensor &bytes, const bindings::MaskBytes &view) {
    const auto fixed = std::find_if(fixed_.begin(), fixed_.end(),
                                    [&](const FixedMask &other) { return other.bytes.const_data_ptr() == view.bytes; });
    if (fixed == fixed_.end() || fixed->version != known_version_of(bytes)) {
        return nullptr;
    }
    void *const stream = current_stream(device_index_);
    const uint64_t capture = bindings::capture_of(stream);
    const auto found = std::find_if(fixed->set.begin(), fixed->set.end(),
                                    [&](const SetMask &set) { return have_one_shape(set.view, view); });
    if (found != fixed->set.end()) {
        return found->stream == stream && found->capture == capture ? found->mask : nullptr;
    }
    const int32_t role = free_role(view);
    fixed->set.push_back({view, role, stream, capture, bindings::Session::mask(view, role)});
    return fixed->set.back().mask;
}

int32_t Session::free_role(const bindings::MaskBytes &view) const {
    // Above those of a call's masks.
    int32_t role = 1;
    bool taken = true;
    while (taken) {
        role++;
        taken = std::any_of(fixed_.begin(), fixed_.end(), [&](const FixedMask &fixed) {
            return std::any_of(fixed.set.begin(), fixed.set.end(),
                               [&](const SetMask &set) { return set.role == role && have_one_shape(set.view, view); });
        });
    }
    return role;
}

void set_math(int64_t math) {
    if (math < DISTILE_MATH_DEFAULT || math > DISTILE_MATH_TF32) {
        fail("there is no math with the number " + std::to_string(math));
    }
    wanted_math = static_cast<distile_math>(math);
}

distile_math current_math() {
    return wanted_math;
}

}  // namespace distile::python
