/** \file
 * What calls of a framework on one device share: a context, kernels, and masks. It serves one thread at a time.
 */
#ifndef DISTILE_BINDINGS_SESSION_H
#define DISTILE_BINDINGS_SESSION_H

#include <distile/distile.hpp>
#include <unordered_map>
#include <vector>

namespace distile::bindings {

/** A mask in the framework's memory: contiguous bytes [batch, height, width], not 0 where it is active; or [height,
 * width] for all images. */
struct MaskBytes {
    const uint8_t *bytes;
    int64_t batch, height, width;
    bool of_one_image = false;
};

class Session {
public:
    explicit Session(Context context);

    distile_context *context() const {
        return context_.get();
    }
    distile_device device() const {
        return distile_context_device(context());
    }
    distile_kernel *kernel(const distile_polykernel &polykernel);

    /** The mask with these bytes. On a CPU, equal masks share one distile_mask with its tile lists, as long as it is
     * among the last few. On a GPU, a distile_mask serves all masks of one shape and role. Masks with different roles
     * stay valid together until the next call. */
    distile_mask *mask(const MaskBytes &bytes, int32_t role = 0);
    /** A mask to be set. */
    Mask make_mask() const;
    /** A mask to be set to this shape, and valid until the next call of this function with its role. */
    distile_mask *result_mask(int64_t batch, int64_t height, int64_t width, int32_t role = 0);

private:
    struct CachedMask {
        Mask mask;
        int32_t role = 0;
        int64_t batch = 0, height = 0, width = 0;
    };

    /** The mask of this shape and role on a GPU, which the list no longer has; or a new one. */
    Mask take_from(std::vector<CachedMask> &masks, const CachedMask &wanted) const;
    /** A mask to be set to other bytes. */
    Mask take_mask(const CachedMask &wanted);
    distile_mask *keep(CachedMask &&mask);
    distile_mask *equal_mask(CachedMask &&wanted);

    Context context_;
    std::unordered_map<const distile_polykernel *, Kernel> kernels_;
    std::vector<CachedMask> masks_; /**< The last used first. */
    std::vector<CachedMask> results_;
    Mask spare_;
};

}  // namespace distile::bindings

#endif
