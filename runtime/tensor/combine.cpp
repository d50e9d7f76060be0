#include "runtime/base/context.h"
#include "runtime/base/enumerators.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <distile/layers.h>

using namespace distile;

namespace {

constexpr const char *combine_call = "distile_combine";

bool has_extents(const distile_tensor &tensor, int32_t batch, int32_t height, int32_t width) {
    return tensor.batch == batch && tensor.height == height && tensor.width == width;
}

/** The second operand as one of the input's shape: a single pixel of an image has strides of 0. */
distile_tensor spread(const distile_tensor &other, const distile_tensor &input) {
    distile_tensor all = other;
    if (other.height != input.height || other.width != input.width) {
        all.height = input.height;
        all.width = input.width;
        all.stride_h = all.stride_w = 0;
    }
    return all;
}

distile_status check_operand(distile_context *context, const distile_tensor &operand, const distile_tensor &output,
                             const char *name) {
    const bool in_place = has_extents(operand, output.batch, output.height, output.width) && same_view(operand, output);
    return !in_place && overlap(without_border(operand), without_border(output))
               ? fail(context, DISTILE_ERROR_ALIASING, "%s: the %s overlaps the output but is not the same view",
                      combine_call, name)
               : DISTILE_OK;
}

distile_status check_other(distile_context *context, const distile_combine_args &args) {
    const distile_tensor &input = *args.input;
    if (raw(args.combination) == DISTILE_COPY) {
        return args.other || raw(args.other_activation) != DISTILE_ACTIVATION_NONE
                   ? fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a copy has no second operand and no activation of it",
                          combine_call)
                   : DISTILE_OK;
    }
    require(check_tensor(context, input.dtype, combine_call, args.other, "second operand", input.channels, false));
    const distile_tensor &other = *args.other;
    if (!has_extents(other, input.batch, input.height, input.width) && !has_extents(other, input.batch, 1, 1)) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: the second operand is %d x %d x %d (batch, height, width); it must be %d x %d x %d as the "
                    "input, or %d x 1 x 1",
                    combine_call, other.batch, other.height, other.width, input.batch, input.height, input.width,
                    input.batch);
    }
    return check_operand(context, other, *args.output, "second operand");
}

distile_status check_args(distile_context *context, const char *, const distile_combine_args &args) {
    require(check_enumerator(context, combine_call, "combination", args.combination));
    require(check_any_tensor(context, combine_call, args.input, "input"));
    require(check_tensor(context, args.input->dtype, combine_call, args.output, "output", args.input->channels, false));
    require(check_same_extents(context, combine_call, *args.input, *args.output));
    require(check_operand(context, *args.input, *args.output, "input"));
    require(check_other(context, args));
    require(check_enumerator(context, combine_call, "other_activation", args.other_activation));
    require(check_enumerator(context, combine_call, "activation", args.activation));
    require(check_alignment(context, combine_call,
                            {{args.other_slope, sizeof(float), "the slope of other_activation"},
                             {args.slope, sizeof(float), "the slope of activation"}}));
    require(check_enumerator(context, combine_call, "inactive", args.inactive));
    if (!is_reserved_zero(args.reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the arguments is not 0", combine_call);
    }
    return check_output_mask(context, combine_call, args.mask, *args.output);
}

}  // namespace

extern "C" {

distile_status distile_combine(distile_context *context, const distile_combine_args *args) {
    return call_with(context, combine_call, args, check_args, [&] {
        const distile_tensor other = args->other ? spread(*args->other, *args->input) : *args->input;
        context->device->combine({*args->input,
                                  other,
                                  *args->output,
                                  *args->mask,
                                  args->combination,
                                  {args->other_activation, slope_of(args->other_slope)},
                                  {args->activation, slope_of(args->slope)},
                                  args->inactive == DISTILE_ZERO});
    });
}

}  // extern "C"
