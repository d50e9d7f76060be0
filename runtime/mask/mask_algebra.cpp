#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <cmath>
#include <distile/layers.h>

using namespace distile;

namespace {

/** Checks a window, and that a mask of its input can be mapped through it. */
distile_status check_transfer(distile_context *context, const char *call, const distile_window *window,
                              Direction direction, const MaskShape &from, const MaskShape &to) {
    const distile_status status = check_window(context, call, window);
    if (status != DISTILE_OK) {
        return status;
    }
    if (window->kind == DISTILE_WINDOW_UPSAMPLED) {
        const MaskShape &input = direction == Direction::ToInput ? to : from;
        // The largest output with the largest padding.
        constexpr int64_t largest = 2 * int64_t{largest_extent};
        if (int64_t{input.height} * window->stride_h > largest || int64_t{input.width} * window->stride_w > largest) {
            return fail(context, DISTILE_ERROR_BAD_SHAPE,
                        "%s: an input of %d x %d upsampled by %d x %d exceeds %lld rows or columns", call, input.height,
                        input.width, window->stride_h, window->stride_w, static_cast<long long>(largest));
        }
    }
    return DISTILE_OK;
}

/** Sets a mask by mapping another through a window. */
distile_status transfer(const char *call, distile_mask *result, distile_mask *from, const distile_window *window,
                        int32_t height, int32_t width, Direction direction) {
    distile_status status = check_masks(call, {from}, result);
    if (status != DISTILE_OK) {
        return status;
    }
    const MaskShape to = {from->shape.batch, height, width};
    status = check_transfer(&result->context, call, window, direction, from->shape, to);
    if (status == DISTILE_OK) {
        status = check_mask_shape(*result, call, to);
    }
    return status != DISTILE_OK
               ? status
               : set_mask(*result, call, to, [&] { result->set_window(to, *from, *window, direction); });
}

distile_status combine(const char *call, Combination how, distile_mask *result, distile_mask *a, distile_mask *b) {
    const distile_status status =
        how == Combination::Invert ? check_masks(call, {a}, result) : check_masks(call, {a, b}, result);
    if (status != DISTILE_OK) {
        return status;
    }
    if (how != Combination::Invert && !(a->shape == b->shape)) {
        return fail(&result->context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: the masks must have the same shape, but are %d x %d x %d and %d x %d x %d", call,
                    a->shape.batch, a->shape.height, a->shape.width, b->shape.batch, b->shape.height, b->shape.width);
    }
    return set_mask(*result, call, a->shape, [&] { result->set_combination(how, *a, b); });
}

distile_status check_difference(distile_context *context, const char *call, const distile_tensor *a,
                                const distile_tensor *b, float threshold) {
    for (const distile_tensor *tensor : {a, b}) {
        const char *name = tensor == a ? "first tensor" : "second tensor";
        const distile_status status = check_any_tensor(context, call, tensor, name);
        if (status != DISTILE_OK) {
            return status;
        }
    }
    if (a->dtype != b->dtype) {
        return fail(context, DISTILE_ERROR_BAD_TYPE, "%s: the tensors must have the same data type, but have %s and %s",
                    call, TypeText(a->dtype).text, TypeText(b->dtype).text);
    }
    if (a->batch != b->batch || a->height != b->height || a->width != b->width || a->channels != b->channels) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: the tensors must have the same shape, but are %d x %d x %d x %d and %d x %d x %d x %d", call,
                    a->batch, a->height, a->width, a->channels, b->batch, b->height, b->width, b->channels);
    }
    if (!(threshold >= 0)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: the threshold is %g; it must be at least 0", call,
                    static_cast<double>(threshold));
    }
    return DISTILE_OK;
}

}  // namespace

extern "C" {

distile_status distile_mask_needed_input(distile_mask *result, distile_mask *output, const distile_window *window,
                                         int32_t in_height, int32_t in_width) {
    return transfer("distile_mask_needed_input", result, output, window, in_height, in_width, Direction::ToInput);
}

distile_status distile_mask_affected_output(distile_mask *result, distile_mask *input, const distile_window *window,
                                            int32_t out_height, int32_t out_width) {
    return transfer("distile_mask_affected_output", result, input, window, out_height, out_width, Direction::ToOutput);
}

distile_status distile_mask_dilate(distile_mask *result, distile_mask *mask, int32_t radius_h, int32_t radius_w) {
    constexpr const char *call = "distile_mask_dilate";
    const distile_status status = check_masks(call, {mask}, result);
    if (status != DISTILE_OK) {
        return status;
    }
    constexpr int32_t largest_radius = (largest_extent - 1) / 2;
    if (radius_h < 0 || radius_w < 0 || radius_h > largest_radius || radius_w > largest_radius) {
        return fail(&result->context, DISTILE_ERROR_BAD_VALUE,
                    "%s: the radii are %d and %d pixels; each must be 0 to %d", call, radius_h, radius_w,
                    largest_radius);
    }
    const distile_window window = {2 * radius_h + 1, 2 * radius_w + 1,   1, 1, 1, 1, radius_h,
                                   radius_w,         DISTILE_WINDOW_CONV};
    return transfer(call, result, mask, &window, mask->shape.height, mask->shape.width, Direction::ToOutput);
}

distile_status distile_mask_pool(distile_mask *result, distile_mask *mask, int32_t factor_h, int32_t factor_w) {
    constexpr const char *call = "distile_mask_pool";
    const distile_status status = check_masks(call, {mask}, result);
    if (status != DISTILE_OK) {
        return status;
    }
    if (factor_h < 1 || factor_w < 1 || factor_h > largest_extent || factor_w > largest_extent) {
        return fail(&result->context, DISTILE_ERROR_BAD_VALUE, "%s: the factors are %d and %d; each must be 1 to %d",
                    call, factor_h, factor_w, largest_extent);
    }
    const distile_window window = {factor_h, factor_w, factor_h, factor_w, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
    return transfer(call, result, mask, &window, (mask->shape.height - 1) / factor_h + 1,
                    (mask->shape.width - 1) / factor_w + 1, Direction::ToOutput);
}

distile_status distile_mask_unite(distile_mask *result, distile_mask *a, distile_mask *b) {
    return combine("distile_mask_unite", Combination::Unite, result, a, b);
}

distile_status distile_mask_intersect(distile_mask *result, distile_mask *a, distile_mask *b) {
    return combine("distile_mask_intersect", Combination::Intersect, result, a, b);
}

distile_status distile_mask_subtract(distile_mask *result, distile_mask *a, distile_mask *b) {
    return combine("distile_mask_subtract", Combination::Subtract, result, a, b);
}

distile_status distile_mask_invert(distile_mask *result, distile_mask *a) {
    return combine("distile_mask_invert", Combination::Invert, result, a, nullptr);
}

distile_status distile_mask_set_difference(distile_mask *result, const distile_tensor *a, const distile_tensor *b,
                                           float threshold) {
    constexpr const char *call = "distile_mask_set_difference";
    if (!result) {
        return fail_null(call, "result mask");
    }
    distile_status status = check_difference(&result->context, call, a, b, threshold);
    if (status != DISTILE_OK) {
        return status;
    }
    const MaskShape shape = {a->batch, a->height, a->width};
    status = check_mask_shape(*result, call, shape);
    return status != DISTILE_OK ? status
                                : set_mask(*result, call, shape, [&] { result->set_difference(*a, *b, threshold); });
}

distile_status distile_mask_set_scores(distile_mask *mask, const distile_tensor *tensor, const float *weights,
                                       float bias, float threshold) {
    constexpr const char *call = "distile_mask_set_scores";
    if (!mask) {
        return fail_null(call, "mask");
    }
    distile_context *context = &mask->context;
    distile_status status = check_any_tensor(context, call, tensor, "tensor");
    if (status == DISTILE_OK) {
        status = check_alignment(context, call, {{weights, sizeof(float), "weights"}});
    }
    if (status != DISTILE_OK) {
        return status;
    }
    const MaskShape shape = {tensor->batch, tensor->height, tensor->width};
    status = check_mask_shape(*mask, call, shape);
    if (status != DISTILE_OK) {
        return status;
    }
    if (std::isnan(bias) || std::isnan(threshold)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: %s is NaN", call, std::isnan(bias) ? "bias" : "threshold");
    }
    return set_mask(*mask, call, shape, [&] { mask->set_scores(*tensor, {weights, bias, threshold}); });
}

}  // extern "C"
