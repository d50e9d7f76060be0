#include "runtime/base/context.h"
#include "runtime/base/enumerators.h"
#include "runtime/base/types.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <distile/tokens.h>

using namespace distile;

namespace {

constexpr const char *normalize_call = "distile_normalize";

distile_status check_tensors(distile_context *context, const distile_normalize_args &args) {
    require(check_any_tensor(context, normalize_call, args.input, "input"));
    const distile_tensor &input = *args.input;
    require(check_tensor(context, input.dtype, normalize_call, args.output, "output", input.channels, false));
    const distile_tensor &output = *args.output;
    constexpr int32_t most_channels = 65535;
    if (input.channels > most_channels) {
        return fail(context, DISTILE_ERROR_BAD_CHANNELS, "%s: the input has %d channels; it may have at most %d",
                    normalize_call, input.channels, most_channels);
    }
    require(check_same_extents(context, normalize_call, input, output));
    if (!same_view(input, output) && overlap(without_border(input), without_border(output))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the input overlaps the output but is not the same view",
                    normalize_call);
    }
    return DISTILE_OK;
}

distile_status check_args(distile_context *context, const char *, const distile_normalize_args &args) {
    require(check_tensors(context, args));
    require(check_vector(context, normalize_call, args.gamma, "gamma", args.output->channels, *args.output));
    require(check_vector(context, normalize_call, args.beta, "beta", args.output->channels, *args.output));
    require(check_enumerator(context, normalize_call, "inactive", args.inactive));
    require(check_enumerator(context, normalize_call, "norm", args.norm));
    require(check_epsilon(context, normalize_call, args.epsilon));
    if (!is_reserved_zero(args.reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the arguments is not 0", normalize_call);
    }
    return check_output_mask(context, normalize_call, args.mask, *args.output);
}

}  // namespace

extern "C" {

distile_status distile_normalize(distile_context *context, const distile_normalize_args *args) {
    return call_with(context, normalize_call, args, check_args, [&] {
        context->device->normalize({*args->input, *args->output, *args->mask, args->gamma, args->beta, args->epsilon,
                                    args->norm == DISTILE_LAYER_NORM, args->inactive == DISTILE_ZERO});
    });
}

}  // extern "C"
