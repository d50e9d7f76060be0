#include "runtime/mask/mask_checks.h"
#include "runtime/base/enumerators.h"
#include "runtime/tensor/tensor.h"

namespace distile {

distile_status check_mask(distile_context *context, const char *call, const distile_mask *mask, const char *name) {
    if (!mask) {
        // Returned as a constant, so static analysis sees that no caller uses this mask.
        fail_null(context, call, name);
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (&mask->context != context) {
        return fail(context, DISTILE_ERROR_BAD_MASK, "%s: the %s belongs to another context", call, name);
    }
    if (!mask->is_set()) {
        return fail(context, DISTILE_ERROR_BAD_MASK, "%s: the %s was never set", call, name);
    }
    return DISTILE_OK;
}

distile_status check_same_shape(distile_context *context, const char *call, const MaskShape &mask,
                                const MaskShape &tensor, const char *name) {
    return mask == tensor
               ? DISTILE_OK
               : fail(context, DISTILE_ERROR_BAD_MASK,
                      "%s: the mask is %d x %d x %d (batch, height, width), but the %s is %d x %d x %d", call,
                      mask.batch, mask.height, mask.width, name, tensor.batch, tensor.height, tensor.width);
}

distile_status check_output_mask(distile_context *context, const char *call, const distile_mask *mask,
                                 const distile_tensor &output) {
    const distile_status status = check_mask(context, call, mask);
    return status != DISTILE_OK
               ? status
               : check_same_shape(context, call, mask->shape, {output.batch, output.height, output.width});
}

distile_status check_masks(const char *call, std::initializer_list<const distile_mask *> operands,
                           const distile_mask *result) {
    if (!result) {
        fail_null(call, "result mask");
        return DISTILE_ERROR_NULL_POINTER;
    }
    const char *name = operands.size() == 1 ? "mask" : "first mask";
    for (const distile_mask *mask : operands) {
        const distile_status status = check_mask(&result->context, call, mask, name);
        name = "second mask";
        if (status != DISTILE_OK) {
            return status;
        }
    }
    return DISTILE_OK;
}

distile_status check_mask_shape(const distile_mask &mask, const char *call, const MaskShape &shape) {
    if (shape.batch < 1 || shape.height < 1 || shape.width < 1 || shape.batch > largest_extent ||
        shape.height > largest_extent || shape.width > largest_extent) {
        return fail(&mask.context, DISTILE_ERROR_BAD_SHAPE, "%s: batch %d, height %d, width %d; each must be 1 to %d",
                    call, shape.batch, shape.height, shape.width, largest_extent);
    }
    return mask.check_shape(call, shape);
}

distile_status check_strides(const distile_mask &mask, const char *call, const MaskShape &shape, int64_t stride_n,
                             int64_t stride_h) {
    if (stride_h < shape.width || (shape.batch > 1 && (stride_n < 0 || stride_n / shape.height < stride_h))) {
        return fail(&mask.context, DISTILE_ERROR_BAD_STRIDE,
                    "%s: stride_h %lld must be at least the width %d, and stride_n %lld at least stride_h times the "
                    "height %d",
                    call, static_cast<long long>(stride_h), shape.width, static_cast<long long>(stride_n),
                    shape.height);
    }
    return DISTILE_OK;
}

distile_status check_window(distile_context *context, const char *call, const distile_window *window) {
    if (!window) {
        return fail_null(context, call, "window");
    }
    for (int32_t extent : {window->kernel_h, window->kernel_w, window->stride_h, window->stride_w, window->dilation_h,
                           window->dilation_w}) {
        if (extent < 1 || extent > largest_extent) {
            return fail(context, DISTILE_ERROR_BAD_VALUE,
                        "%s: the window has a kernel, stride or dilation of %d; each must be 1 to %d", call, extent,
                        largest_extent);
        }
    }
    for (int32_t pad : {window->pad_top, window->pad_left}) {
        if (pad < 0 || pad > largest_extent) {
            return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: the window has a padding of %d; it must be 0 to %d",
                        call, pad, largest_extent);
        }
    }
    return check_enumerator(context, call, "the window's kind", window->kind);
}

}  // namespace distile
