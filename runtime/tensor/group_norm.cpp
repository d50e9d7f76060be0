#include "runtime/base/context.h"
#include "runtime/base/enumerators.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <distile/layers.h>

using namespace distile;

namespace {

distile_status check_groups(distile_context *context, const char *call, int32_t groups, int32_t channels) {
    return groups >= 1 && channels % groups == 0
               ? DISTILE_OK
               : fail(context, DISTILE_ERROR_BAD_VALUE, "%s: groups is %d; it must divide the %d channels", call,
                      groups, channels);
}

/** Checks numbers that are written for every image and group. */
distile_status check_statistic(distile_context *context, const char *call, const float *statistic, const char *name,
                               const distile_group_statistics_args &args) {
    if (!statistic) {
        return fail_null(context, call, name);
    }
    require(check_alignment(context, call, {{statistic, sizeof(float), name}}));
    const auto bytes = static_cast<uintptr_t>(int64_t{args.input->batch} * args.groups) * sizeof(float);
    return overlap(without_border(*args.input), statistic, bytes)
               ? fail(context, DISTILE_ERROR_ALIASING, "%s: %s overlaps the input", call, name)
               : DISTILE_OK;
}

distile_status check_args(distile_context *context, const char *call, const distile_group_statistics_args &args) {
    require(check_any_tensor(context, call, args.input, "input"));
    require(check_groups(context, call, args.groups, args.input->channels));
    require(check_statistic(context, call, args.mean, "mean", args));
    require(check_statistic(context, call, args.variance, "variance", args));
    const distile_tensor &input = *args.input;
    const auto mean = reinterpret_cast<uintptr_t>(args.mean), variance = reinterpret_cast<uintptr_t>(args.variance);
    const auto bytes = static_cast<uintptr_t>(int64_t{input.batch} * args.groups) * sizeof(float);
    if ((mean < variance ? variance - mean : mean - variance) < bytes) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: mean and variance overlap", call);
    }
    if (!is_reserved_zero(args.reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the arguments is not 0", call);
    }
    if (!args.mask) {
        return DISTILE_OK;
    }
    require(check_mask(context, call, args.mask));
    return check_same_shape(context, call, args.mask->shape, {input.batch, input.height, input.width}, "input");
}

distile_status check_tensors(distile_context *context, const char *call, const distile_group_norm_args &args) {
    require(check_any_tensor(context, call, args.input, "input"));
    require(check_tensor(context, args.input->dtype, call, args.output, "output", args.input->channels, false));
    require(check_same_extents(context, call, *args.input, *args.output));
    const distile_tensor &input = *args.input, &output = *args.output;
    return !same_view(input, output) && overlap(without_border(input), without_border(output))
               ? fail(context, DISTILE_ERROR_ALIASING, "%s: the input overlaps the output but is not the same view",
                      call)
               : DISTILE_OK;
}

distile_status check_vectors(distile_context *context, const char *call, const distile_group_norm_args &args) {
    if (args.shared_statistics < 0 || args.shared_statistics > 1) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: shared_statistics is %d; it must be 0 or 1", call,
                    args.shared_statistics);
    }
    // Both, or neither and nothing to share.
    if (!args.mean && (args.variance || args.shared_statistics != 0)) {
        return fail_null(context, call, "mean");
    }
    if (args.mean && !args.variance) {
        return fail_null(context, call, "variance");
    }
    const distile_tensor &output = *args.output;
    const int64_t statistics = (args.shared_statistics != 0 ? 1 : int64_t{output.batch}) * args.groups;
    const struct {
        const float *vector;
        const char *name;
        int64_t count;
    } vectors[] = {{args.mean, "mean", statistics},
                   {args.variance, "variance", statistics},
                   {args.gamma, "gamma", output.channels},
                   {args.beta, "beta", output.channels}};
    for (const auto &[vector, name, count] : vectors) {
        require(check_vector(context, call, vector, name, count, output));
    }
    return DISTILE_OK;
}

distile_status check_args(distile_context *context, const char *call, const distile_group_norm_args &args) {
    require(check_tensors(context, call, args));
    require(check_groups(context, call, args.groups, args.input->channels));
    require(check_vectors(context, call, args));
    require(check_epsilon(context, call, args.epsilon));
    require(check_enumerator(context, call, "activation", args.activation));
    require(check_alignment(context, call, {{args.slope, sizeof(float), "the slope"}}));
    require(check_enumerator(context, call, "inactive", args.inactive));
    if (!is_reserved_zero(args.reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the arguments is not 0", call);
    }
    return check_output_mask(context, call, args.mask, *args.output);
}

}  // namespace

extern "C" {

distile_status distile_group_statistics(distile_context *context, const distile_group_statistics_args *args) {
    return call_with(context, "distile_group_statistics", args, check_args, [&] {
        context->device->find_statistics({*args->input, args->mask, args->groups, args->mean, args->variance});
    });
}

distile_status distile_group_norm(distile_context *context, const distile_group_norm_args *args) {
    return call_with(context, "distile_group_norm", args, check_args, [&] {
        context->device->normalize_groups({*args->input,
                                           *args->output,
                                           *args->mask,
                                           args->groups,
                                           args->mean,
                                           args->variance,
                                           args->shared_statistics != 0,
                                           args->gamma,
                                           args->beta,
                                           args->epsilon,
                                           {args->activation, slope_of(args->slope)},
                                           args->inactive == DISTILE_ZERO});
    });
}

}  // extern "C"
