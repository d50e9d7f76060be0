#include "runtime/base/context.h"
#include "runtime/base/enumerators.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <distile/upsample.h>

using namespace distile;

namespace {

constexpr const char *upsample_call = "distile_upsample_nearest";

distile_status check_args(distile_context *context, const char *, const distile_upsample_args &args) {
    require(check_any_tensor(context, upsample_call, args.input, "input"));
    const distile_tensor &input = *args.input;
    require(check_tensor(context, input.dtype, upsample_call, args.output, "output", input.channels, false));
    const distile_tensor &output = *args.output;
    if (args.scale_h < 1 || args.scale_w < 1) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: the scales are %d and %d; each must be at least 1",
                    upsample_call, args.scale_h, args.scale_w);
    }
    require(check_enumerator(context, upsample_call, "inactive", args.inactive));
    if (!is_reserved_zero(args.reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the arguments is not 0", upsample_call);
    }
    const int64_t height = int64_t{input.height} * args.scale_h, width = int64_t{input.width} * args.scale_w;
    if (output.batch != input.batch || output.height != height || output.width != width) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: the output is %d x %d x %d (batch, height, width), but this input gives %d x %lld x %lld",
                    upsample_call, output.batch, output.height, output.width, input.batch,
                    static_cast<long long>(height), static_cast<long long>(width));
    }
    if (overlap(without_border(input), without_border(output))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the input overlaps the output", upsample_call);
    }
    return check_output_mask(context, upsample_call, args.mask, output);
}

}  // namespace

extern "C" {

distile_status distile_upsample_nearest(distile_context *context, const distile_upsample_args *args) {
    return call_with(context, upsample_call, args, check_args, [&] {
        context->device->upsample_nearest(*args->input, *args->output, *args->mask, args->scale_h, args->scale_w,
                                          args->inactive == DISTILE_ZERO);
    });
}

}  // extern "C"
