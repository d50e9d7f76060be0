#include "runtime/base/context.h"
#include "runtime/base/enumerators.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <distile/layers.h>

using namespace distile;

namespace {

/** Checks both tensors of a pooling, except their heights and widths. */
distile_status check_tensors(distile_context *context, const char *call, const distile_tensor *input,
                             const distile_tensor *output) {
    require(check_any_tensor(context, call, input, "input"));
    require(check_tensor(context, input->dtype, call, output, "output", input->channels, false));
    if (output->batch != input->batch) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE, "%s: the output has %d images, but the input has %d", call,
                    output->batch, input->batch);
    }
    return overlap(without_border(*input), without_border(*output))
               ? fail(context, DISTILE_ERROR_ALIASING, "%s: the input overlaps the output", call)
               : DISTILE_OK;
}

/** A window along one axis. */
struct PooledAxis {
    int32_t kernel, stride, dilation, pad;

    /** The first output whose window contains none of the input's pixels; -1 if there is none. */
    int64_t empty_window(int32_t input, int32_t output) const {
        for (int64_t at = 0; at < output; at++) {
            const int64_t start = at * stride - pad, taps_before = start < 0 ? (dilation - 1 - start) / dilation : 0;
            if (taps_before >= kernel || start + taps_before * dilation >= input) {
                return at;
            }
        }
        return -1;
    }
};

distile_status check_windows(distile_context *context, const char *call, const distile_pool_args &args) {
    require(check_window(context, call, &args.window));
    if (args.window.kind != DISTILE_WINDOW_CONV) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: the window's kind is not DISTILE_WINDOW_CONV", call);
    }
    return check_pooled_pixels(context, call, args.window, *args.input, *args.output);
}

distile_status check_args(distile_context *context, const char *call, const distile_pool_args &args) {
    require(check_tensors(context, call, args.input, args.output));
    require(check_windows(context, call, args));
    require(check_enumerator(context, call, "pooling", args.pooling));
    require(check_enumerator(context, call, "inactive", args.inactive));
    if (args.count_padding < 0 || args.count_padding > 1) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: count_padding is %d; it must be 0 or 1", call,
                    args.count_padding);
    }
    if (!is_reserved_zero(args.reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the arguments is not 0", call);
    }
    return check_output_mask(context, call, args.mask, *args.output);
}

distile_status check_args(distile_context *context, const char *call, const distile_global_pool_args &args) {
    require(check_tensors(context, call, args.input, args.output));
    require(check_enumerator(context, call, "pooling", args.pooling));
    if (args.output->height != 1 || args.output->width != 1) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE, "%s: the output has images of %d x %d pixels; each must be 1 x 1",
                    call, args.output->height, args.output->width);
    }
    if (!is_reserved_zero(args.reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the arguments is not 0", call);
    }
    if (!args.mask) {
        return DISTILE_OK;
    }
    require(check_mask(context, call, args.mask));
    const distile_tensor &input = *args.input;
    return check_same_shape(context, call, args.mask->shape, {input.batch, input.height, input.width}, "input");
}

}  // namespace

distile_status distile::check_pooled_pixels(distile_context *context, const char *call, const distile_window &window,
                                            const distile_tensor &input, const distile_tensor &output) {
    const PooledAxis rows = {window.kernel_h, window.stride_h, window.dilation_h, window.pad_top};
    const PooledAxis columns = {window.kernel_w, window.stride_w, window.dilation_w, window.pad_left};
    const int64_t row = rows.empty_window(input.height, output.height);
    const int64_t column = columns.empty_window(input.width, output.width);
    if (row < 0 && column < 0) {
        return DISTILE_OK;
    }
    return fail(context, DISTILE_ERROR_BAD_SHAPE,
                "%s: the window of output %s %lld contains no %s of the input, which is %d x %d x %d (batch, height, "
                "width)",
                call, row < 0 ? "column" : "row", static_cast<long long>(row < 0 ? column : row),
                row < 0 ? "column" : "row", input.batch, input.height, input.width);
}

extern "C" {

distile_status distile_pool(distile_context *context, const distile_pool_args *args) {
    return call_with(context, "distile_pool", args, check_args, [&] {
        context->device->pool({*args->input, *args->output, *args->mask, args->window,
                               args->pooling == DISTILE_MAX_POOLING, args->count_padding != 0,
                               args->inactive == DISTILE_ZERO});
    });
}

distile_status distile_global_pool(distile_context *context, const distile_global_pool_args *args) {
    return call_with(context, "distile_global_pool", args, check_args, [&] {
        context->device->pool_globally({*args->input, *args->output, args->mask, args->pooling == DISTILE_MAX_POOLING});
    });
}

}  // extern "C"
