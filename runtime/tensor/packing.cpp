#include "runtime/base/context.h"
#include "runtime/base/enumerators.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <distile/tokens.h>

using namespace distile;

namespace {

distile_status check_packing(distile_context *context, const char *call, const distile_tensor *tensor,
                             distile_mask *mask, const distile_tensor *packed) {
    distile_status status = check_any_tensor(context, call, tensor, "tensor");
    if (status == DISTILE_OK) {
        status = check_tensor(context, tensor->dtype, call, packed, "packed tensor", tensor->channels, false);
    }
    if (status != DISTILE_OK) {
        return status;
    }
    if (overlap(without_border(*tensor), without_border(*packed))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the packed tensor overlaps the tensor", call);
    }
    status = check_mask(context, call, mask);
    if (status == DISTILE_OK) {
        status = check_same_shape(context, call, mask->shape, {tensor->batch, tensor->height, tensor->width}, "tensor");
    }
    if (status != DISTILE_OK || !mask->counts_on_host()) {
        return status;
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
        const distile_status status = check_packing(context, call, tensor, mask, packed);
        if (status == DISTILE_OK) {
            context->device->pack(*tensor, *mask, *packed);
        }
        return status;
    });
}

distile_status distile_unpack(distile_context *context, const distile_tensor *packed, distile_mask *mask,
                              const distile_tensor *tensor, distile_inactive inactive) {
    constexpr const char *call = "distile_unpack";
    if (!context) {
        return fail_null(call, "context");
    }
    return guarded(context, call, [&] {
        distile_status status = check_enumerator(context, call, "inactive", inactive);
        if (status == DISTILE_OK) {
            status = check_packing(context, call, tensor, mask, packed);
        }
        if (status == DISTILE_OK) {
            context->device->unpack(*packed, *mask, *tensor, inactive == DISTILE_ZERO);
        }
        return status;
    });
}

}  // extern "C"
