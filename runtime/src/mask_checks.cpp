#include "mask_checks.h"
#include "tensor.h"

namespace distile {

Window window_of(const distile_window &window) {
    return {{window.kernel_h, window.stride_h, window.pad_top, window.dilation_h},
            {window.kernel_w, window.stride_w, window.pad_left, window.dilation_w}};
}

distile_status check_same_shape(distile_context *context, const char *call, const MaskShape &mask,
                                const MaskShape &output) {
    return mask == output ? DISTILE_OK
                          : fail(context, DISTILE_ERROR_BAD_MASK,
                                 "%s: the mask is %d x %d x %d (batch, height, width), the output %d x %d x %d", call,
                                 mask.batch, mask.height, mask.width, output.batch, output.height, output.width);
}

distile_status check_window(distile_context *context, const char *call, const distile_window *window,
                            Direction direction, const MaskShape &from, int32_t height, int32_t width) {
    if (!window) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "%s: the window is null", call);
    }
    for (int32_t extent : {window->kernel_h, window->kernel_w, window->stride_h, window->stride_w, window->dilation_h,
                           window->dilation_w}) {
        if (extent < 1 || extent > largest_extent) {
            return fail(context, DISTILE_ERROR_BAD_VALUE,
                        "%s: a window with a kernel, stride or dilation of %d: each goes from 1 to %d", call, extent,
                        largest_extent);
        }
    }
    for (int32_t pad : {window->pad_top, window->pad_left}) {
        if (pad < 0 || pad > largest_extent) {
            return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a window with a padding of %d: it goes from 0 to %d",
                        call, pad, largest_extent);
        }
    }
    const int32_t kind = raw(window->kind);
    if (kind < DISTILE_WINDOW_CONV || kind > DISTILE_WINDOW_UPSAMPLED) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: there is no kind %d of windows", call, kind);
    }
    if (kind == DISTILE_WINDOW_UPSAMPLED) {
        const bool to_input = direction == Direction::ToInput;
        const int32_t in_height = to_input ? height : from.height, in_width = to_input ? width : from.width;
        // An output of the largest extent and the largest padding around it.
        constexpr int64_t largest = 2 * int64_t{largest_extent};
        if (int64_t{in_height} * window->stride_h > largest || int64_t{in_width} * window->stride_w > largest) {
            return fail(context, DISTILE_ERROR_BAD_SHAPE,
                        "%s: an input of %d x %d enlarged %d x %d times has more than %lld rows or columns", call,
                        in_height, in_width, window->stride_h, window->stride_w, static_cast<long long>(largest));
        }
    }
    return DISTILE_OK;
}

distile_status make_dilation(distile_context *context, const char *call, int32_t radius_h, int32_t radius_w,
                             distile_window &window) {
    constexpr int32_t largest_radius = (largest_extent - 1) / 2;
    if (radius_h < 0 || radius_w < 0 || radius_h > largest_radius || radius_w > largest_radius) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: radii of %d and %d pixels: each goes from 0 to %d", call,
                    radius_h, radius_w, largest_radius);
    }
    window = {2 * radius_h + 1, 2 * radius_w + 1, 1, 1, 1, 1, radius_h, radius_w, DISTILE_WINDOW_CONV};
    return DISTILE_OK;
}

distile_status make_pooling(distile_context *context, const char *call, int32_t factor_h, int32_t factor_w,
                            distile_window &window, MaskShape &shape) {
    if (factor_h < 1 || factor_w < 1 || factor_h > largest_extent || factor_w > largest_extent) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: factors of %d and %d: each goes from 1 to %d", call,
                    factor_h, factor_w, largest_extent);
    }
    window = {factor_h, factor_w, factor_h, factor_w, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
    shape.height = (shape.height - 1) / factor_h + 1;
    shape.width = (shape.width - 1) / factor_w + 1;
    return DISTILE_OK;
}

distile_status check_difference(distile_context *context, const char *call, const distile_tensor *a,
                                const distile_tensor *b, float threshold) {
    for (const distile_tensor *tensor : {a, b}) {
        const char *name = tensor == a ? "first tensor" : "second tensor";
        if (tensor && tensor->channels < 1) {
            return fail(context, DISTILE_ERROR_BAD_CHANNELS, "%s: the %s has %d channels", call, name,
                        tensor->channels);
        }
        const distile_status status =
            check_tensor(context, DISTILE_FLOAT32, call, tensor, name, tensor ? tensor->channels : 0, false);
        if (status != DISTILE_OK) {
            return status;
        }
    }
    if (a->batch != b->batch || a->height != b->height || a->width != b->width || a->channels != b->channels) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE, "%s: tensors of %d x %d x %d x %d and of %d x %d x %d x %d", call,
                    a->batch, a->height, a->width, a->channels, b->batch, b->height, b->width, b->channels);
    }
    if (!(threshold >= 0)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a threshold of %g: it must be at least 0", call,
                    static_cast<double>(threshold));
    }
    return DISTILE_OK;
}

}  // namespace distile
