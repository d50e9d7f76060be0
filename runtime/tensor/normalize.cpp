#include "runtime/base/context.h"
#include "runtime/base/enumerators.h"
#include "runtime/base/types.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <distile/tokens.h>

using namespace distile;

namespace {

constexpr const char *call = "distile_normalize";

distile_status check_tensors(distile_context *context, const distile_normalize_args &args) {
    distile_status status = check_any_tensor(context, call, args.input, "input");
    if (status != DISTILE_OK) {
        return status;
    }
    const distile_tensor &input = *args.input;
    status = check_tensor(context, input.dtype, call, args.output, "output", input.channels, false);
    if (status != DISTILE_OK) {
        return status;
    }
    const distile_tensor &output = *args.output;
    constexpr int32_t most_channels = 65535;
    if (input.channels > most_channels) {
        return fail(context, DISTILE_ERROR_BAD_CHANNELS, "%s: the input has %d channels; it may have at most %d", call,
                    input.channels, most_channels);
    }
    status = check_same_extents(context, call, input, output);
    if (status != DISTILE_OK) {
        return status;
    }
    if (!same_view(input, output) && overlap(without_border(input), without_border(output))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the input overlaps the output but is not the same view",
                    call);
    }
    return DISTILE_OK;
}

distile_status check_args(distile_context *context, const distile_normalize_args &args) {
    distile_status status = check_tensors(context, args);
    if (status == DISTILE_OK) {
        status = check_vector(context, call, args.gamma, "gamma", args.output->channels, *args.output);
    }
    if (status == DISTILE_OK) {
        status = check_vector(context, call, args.beta, "beta", args.output->channels, *args.output);
    }
    if (status == DISTILE_OK) {
        status = check_enumerator(context, call, "inactive", args.inactive);
    }
    if (status == DISTILE_OK) {
        status = check_enumerator(context, call, "norm", args.norm);
    }
    if (status == DISTILE_OK) {
        status = check_epsilon(context, call, args.epsilon);
    }
    if (status != DISTILE_OK) {
        return status;
    }
    if (!is_reserved_zero(args.reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the arguments is not 0", call);
    }
    return check_output_mask(context, call, args.mask, *args.output);
}

}  // namespace

extern "C" {

distile_status distile_normalize(distile_context *context, const distile_normalize_args *args) {
    if (!context) {
        return fail_null(call, "context");
    }
    if (!args) {
        return fail_null(context, call, "pointer to the arguments");
    }
    return guarded(context, call, [&] {
        const distile_status status = check_args(context, *args);
        if (status == DISTILE_OK) {
            context->device->normalize({*args->input, *args->output, *args->mask, args->gamma, args->beta,
                                        args->epsilon, args->norm == DISTILE_LAYER_NORM,
                                        args->inactive == DISTILE_ZERO});
        }
        return status;
    });
}

}  // extern "C"
