#include "runtime/base/context.h"
#include "runtime/base/enumerators.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <distile/tokens.h>

using namespace distile;

namespace {

distile_status check_packing(distile_context *context, const char *call, const distile_tensor *tensor,
                             distile_mask *mask, const distile_tensor *packed) {
    require(check_any_tensor(context, call, tensor, "tensor"));
    require(check_tensor(context, tensor->dtype, call, packed, "packed tensor", tensor->channels, false));
    if (overlap(without_border(*tensor), without_border(*packed))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the packed tensor overlaps the tensor", call);
    }
    require(check_mask(context, call, mask));
    require(check_same_shape(context, call, mask->shape, {tensor->batch, tensor->height, tensor->width}, "tensor"));
    if (!mask->counts_on_host()) {
        return DISTILE_OK;
    }
    const int64_t capacity = int64_t{packed->batch} * packed->height * packed->width;
    const int64_t active = mask->active_pixels();
    if (active > capacity) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE, "%s: the packed tensor has %lld pixels, but %lld are active",
                    call, static_cast<long long>(capacity), static_cast<long long>(active));
    }
    return DISTILE_OK;
}

}  // namespace

extern "C" {

distile_status distile_pack(distile_context *context, const distile_tensor *tensor, distile_mask *mask,
                            const distile_tensor *packed) {
    constexpr const char *call = "distile_pack";
    if (!context) {
        return fail_null(call, "context");
    }
    return guarded(context, call, [&] {
        require(check_packing(context, call, tensor, mask, packed));
        context->device->pack(*tensor, *mask, *packed);
        return DISTILE_OK;
    });
}

distile_status distile_unpack(distile_context *context, const distile_tensor *packed, distile_mask *mask,
                              const distile_tensor *tensor, distile_inactive inactive) {
    constexpr const char *call = "distile_unpack";
    if (!context) {
        return fail_null(call, "context");
    }
    return guarded(context, call, [&] {
        require(check_enumerator(context, call, "inactive", inactive));
        require(check_packing(context, call, tensor, mask, packed));
        context->device->unpack(*packed, *mask, *tensor, inactive == DISTILE_ZERO);
        return DISTILE_OK;
    });
}

}  // extern "C"
