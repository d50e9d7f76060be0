#include "session.h"
#include "cuda_session.h"
#include <algorithm>
#include <cstring>
#include <memory>

namespace distile::python {

namespace {

/** Masks that a session keeps on a CPU: more than a block of a network has. */
constexpr size_t kept_masks = 24;

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

}  // namespace

Session::Session(int32_t device_index, int32_t threads)
    : device_(device_index < 0 ? DISTILE_CPU : DISTILE_CUDA), threads_(threads),
      context_(device_index < 0 ? make_cpu_context(threads) : make_cuda_context_of(device_index)) {
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
    follow_stream(session->context(), index);
    return *session;
}

distile_kernel *Session::kernel(const distile_polykernel &polykernel) {
    Kernel &kernel = kernels_[&polykernel];
    if (!kernel) {
        distile_kernel *made = nullptr;
        check(distile_kernel_create(context(), &polykernel, &made), context());
        kernel.reset(made);
    }
    return kernel.get();
}

Mask Session::make_mask() const {
    distile_mask *made = nullptr;
    check(distile_mask_create(context(), &made), context());
    return Mask(made);
}

distile_mask *Session::mask(const Tensor &bytes, int32_t role) {
    const ScalarType type = bytes.scalar_type();
    const auto sizes = bytes.sizes();
    if ((type != ScalarType::Bool && type != ScalarType::Byte) || (sizes.size() != 3 && sizes.size() != 2)) {
        fail("a mask is a tensor of type bool or uint8 with the dimensions [N, H, W], or [N, T] for tokens");
    }
    const bool tokens = sizes.size() == 2;
    CachedMask wanted{nullptr, role, sizes[0], tokens ? 1 : sizes[1], sizes[tokens ? 1 : 2]};
    if (std::max({wanted.batch, wanted.height, wanted.width}) > 65535) {
        fail("a mask has an extent above 65535");
    }
    const Tensor plain = bytes.is_contiguous() ? bytes : torch::stable::contiguous(bytes);
    wanted.mask = take_mask(wanted);
    check(distile_mask_set_bytes(wanted.mask.get(), static_cast<const uint8_t *>(plain.const_data_ptr()),
                                 static_cast<int32_t>(wanted.batch), static_cast<int32_t>(wanted.height),
                                 static_cast<int32_t>(wanted.width), wanted.height * wanted.width, wanted.width),
          context());
    return device_ == DISTILE_CPU ? equal_mask(std::move(wanted)) : keep(std::move(wanted));
}

Mask Session::take_mask(const CachedMask &wanted) {
    if (device_ == DISTILE_CPU) {
        return spare_ ? std::move(spare_) : make_mask();
    }
    // The last call that used it precedes this one on the stream. A mask of another shape would get new addresses,
    // which a captured graph does not expect.
    const auto same = std::find_if(masks_.begin(), masks_.end(), [&](const CachedMask &cached) {
        return cached.role == wanted.role && cached.batch == wanted.batch && cached.height == wanted.height &&
               cached.width == wanted.width;
    });
    if (same == masks_.end()) {
        return make_mask();
    }
    Mask mask = std::move(same->mask);
    masks_.erase(same);
    return mask;
}

distile_mask *Session::keep(CachedMask &&mask) {
    masks_.insert(masks_.begin(), std::move(mask));
    return masks_.front().mask.get();
}

distile_mask *Session::equal_mask(CachedMask &&wanted) {
    const auto bits_of = [&](distile_mask *mask) {
        const uint32_t *words = nullptr;
        int32_t words_per_row = 0;
        check(distile_mask_bits(mask, &words, &words_per_row), context());
        return std::pair(words, static_cast<size_t>(words_per_row) * sizeof(uint32_t));
    };
    const auto [bits, row] = bits_of(wanted.mask.get());
    const size_t size = row * static_cast<size_t>(wanted.batch * wanted.height);
    const auto found = std::find_if(masks_.begin(), masks_.end(), [&](const CachedMask &cached) {
        return cached.batch == wanted.batch && cached.height == wanted.height && cached.width == wanted.width &&
               std::memcmp(bits_of(cached.mask.get()).first, bits, size) == 0;
    });
    if (found != masks_.end()) {
        spare_ = std::move(wanted.mask);
        std::rotate(masks_.begin(), found, found + 1);
        return masks_.front().mask.get();
    }
    if (masks_.size() == kept_masks) {
        spare_ = std::move(masks_.back().mask);
        masks_.pop_back();
    }
    return keep(std::move(wanted));
}

}  // namespace distile::python
