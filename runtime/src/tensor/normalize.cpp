#include "context.h"
#include "mask_checks.h"
#include "tensor.h"
#include "types.h"
#include <cmath>
#include <distile/tokens.h>

using namespace distile;

namespace {

constexpr const char *call = "distile_normalize";

/** Checks a factor or summand of each channel. */
distile_status check_vector(distile_context *context, const float *vector, const char *name,
                            const distile_tensor &output) {
    if (reinterpret_cast<uintptr_t>(vector) % sizeof(float) != 0) {
        return fail(context, DISTILE_ERROR_BAD_ALIGNMENT, "%s: %s is not aligned to %zu bytes", call, name,
                    sizeof(float));
    }
    const auto bytes = static_cast<uintptr_t>(output.channels) * sizeof(float);
    if (vector && overlap(without_border(output), vector, bytes)) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: %s overlaps the output", call, name);
    }
    return DISTILE_OK;
}

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
        status = check_vector(context, args.gamma, "gamma", *args.output);
    }
    if (status == DISTILE_OK) {
        status = check_vector(context, args.beta, "beta", *args.output);
    }
    if (status == DISTILE_OK) {
        status = check_inactive(context, call, args.inactive);
    }
    if (status != DISTILE_OK) {
        return status;
    }
    const int32_t norm = raw(args.norm);
    if (norm < DISTILE_LAYER_NORM || norm > DISTILE_RMS_NORM) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: norm is %d; it must be 0 or 1", call, norm);
    }
    if (!(args.epsilon >= 0) || std::isinf(args.epsilon)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: epsilon is %g; it must be finite and at least 0", call,
                    static_cast<double>(args.epsilon));
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
    return guarded(context, [&] {
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
