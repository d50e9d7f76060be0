#include "bindings/session.h"
#include "bindings/errors.h"
#include <algorithm>
#include <cstring>

namespace distile::bindings {

namespace {

/** Masks that a session keeps on a CPU: more than a block of a network has. */
constexpr size_t kept_masks = 24;

}  // namespace

Session::Session(Context context) : context_(std::move(context)) {
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

distile_mask *Session::mask(const MaskBytes &bytes, int32_t role) {
    if (std::max({bytes.batch, bytes.height, bytes.width}) > 65535) {
        fail("a mask has an extent above 65535");
    }
    CachedMask wanted{nullptr, role, bytes.batch, bytes.height, bytes.width};
    wanted.mask = take_mask(wanted);
    check(distile_mask_set_bytes(wanted.mask.get(), bytes.bytes, static_cast<int32_t>(bytes.batch),
                                 static_cast<int32_t>(bytes.height), static_cast<int32_t>(bytes.width),
                                 bytes.of_one_image ? 0 : bytes.height * bytes.width, bytes.width),
          context());
    return device() == DISTILE_CPU ? equal_mask(std::move(wanted)) : keep(std::move(wanted));
}

distile_mask *Session::result_mask(int64_t batch, int64_t height, int64_t width, int32_t role) {
    CachedMask wanted{nullptr, role, batch, height, width};
    if (device() == DISTILE_CPU) {
        // A mask takes any shape.
        const auto same = std::find_if(results_.begin(), results_.end(),
                                       [&](const CachedMask &cached) { return cached.role == role; });
        if (same != results_.end()) {
            return same->mask.get();
        }
    }
    wanted.mask = take_from(results_, wanted);
    results_.insert(results_.begin(), std::move(wanted));
    return results_.front().mask.get();
}

Mask Session::take_from(std::vector<CachedMask> &masks, const CachedMask &wanted) const {
    // The last call that used it precedes this one on the stream. A mask of another shape would get new addresses,
    // which a captured graph does not expect.
    const auto same = std::find_if(masks.begin(), masks.end(), [&](const CachedMask &cached) {
        return cached.role == wanted.role && cached.batch == wanted.batch && cached.height == wanted.height &&
               cached.width == wanted.width;
    });
    if (same == masks.end()) {
        return make_mask();
    }
    Mask mask = std::move(same->mask);
    masks.erase(same);
    return mask;
}

Mask Session::take_mask(const CachedMask &wanted) {
    if (device() == DISTILE_CPU) {
        return spare_ ? std::move(spare_) : make_mask();
    }
    return take_from(masks_, wanted);
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

}  // namespace distile::bindings
