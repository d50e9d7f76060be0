#include "runtime/stage/stage.h"
#include "runtime/base/context.h"
#include "runtime/base/device.h"
#include "runtime/base/enumerators.h"
#include "runtime/base/types.h"
#include "runtime/dispatch/float_filter.h"
#include "runtime/dispatch/quantized_source.h"
#include "runtime/kinds/operator_kind.h"
#include "runtime/stage/check_stage.h"
#include "runtime/stage/stage_target.h"
#include <algorithm>
#include <cstdint>
#include <optional>

namespace distile {

void Device::run_stage(const Stage &, StageTrace *) {
    throw Failure{fail(&context, DISTILE_ERROR_INTERNAL, "distile_run_stage: the device has a target, but no stages")};
}

namespace {

const StageTarget &target_of(distile_context *context, const char *call) {
    const StageTarget *const target = context->device->stage_target();
    if (!target) {
        throw Failure{fail(context, DISTILE_ERROR_UNSUPPORTED_DEVICE,
                           "%s: stages run on CPUs and on NVIDIA GPUs of compute capability 8.0 and later; call the "
                           "layers one by one here",
                           call)};
    }
    return *target;
}

constexpr const char *pack_quantized_call = "distile_pack_quantized_stage_weights";

/** The filter of a quantized step, if its numbers are positive and fit. */
std::optional<StageFilter> filter_of(const distile_quantized_step &step) {
    const distile_filter_extents &extents = step.extents;
    const int32_t groups = step.groups == 0 ? 1 : step.groups;
    const int64_t in_channels = int64_t{extents.in_channels} * groups;
    const double elements = static_cast<double>(extents.out_channels) * extents.in_channels * extents.kernel_h *
                            static_cast<double>(extents.kernel_w);
    const int32_t least = std::min({extents.out_channels, extents.in_channels, extents.kernel_h, extents.kernel_w});
    if (groups < 1 || least < 1 || in_channels > INT32_MAX || elements >= 0x1p31) {
        return {};
    }
    return StageFilter{extents.out_channels, static_cast<int32_t>(in_channels), extents.kernel_h, extents.kernel_w,
                       groups};
}

/** The filter of a step whose types and channels a target has. */
StageFilter check_quantized_step(distile_context *context, const StageTarget &target,
                                 const distile_quantized_step &step) {
    const int32_t input = raw(step.input), output = raw(step.output);
    if (!is_quantized(input) || (output != input && output != DISTILE_FLOAT32)) {
        throw Failure{fail(
            context, DISTILE_ERROR_BAD_TYPE,
            "%s: the step reads %s and writes %s; a quantized step reads uint8 or int8 and writes the same type or "
            "float32",
            pack_quantized_call, TypeText(input).text, TypeText(output).text)};
    }
    require(check_enumerator(context, pack_quantized_call, "activation", step.activation));
    if (!is_reserved_zero(step.reserved)) {
        throw Failure{
            fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the step is not 0", pack_quantized_call)};
    }
    const std::optional<StageFilter> filter = filter_of(step);
    if (!filter || !target.is_possible(*filter, step.input)) {
        const distile_filter_extents &extents = step.extents;
        throw Failure{fail(context, DISTILE_ERROR_BAD_CHANNELS,
                           "%s: a convolution of %d x %d from %d to %d channels in each of %d groups; stages take "
                           "multiples of %d, in %s here",
                           pack_quantized_call, extents.kernel_h, extents.kernel_w, extents.in_channels,
                           extents.out_channels, step.groups, target.channels_at_once(step.input),
                           target.group_text())};
    }
    return *filter;
}

void check_quantized_source(distile_context *context, const distile_quantized_step &step,
                            const distile_weights_source &source) {
    require(check_pointers(context, pack_quantized_call, {{source.filter, "source's filter"}}));
    require(check_enumerator(context, pack_quantized_call, "order", source.order));
    if (!is_reserved_zero(source.reserved)) {
        throw Failure{
            fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the source is not 0", pack_quantized_call)};
    }
    require(check_source_alignment(context, pack_quantized_call, source));
    const bool adds = source.quantization && source.quantization->residual.scale != 0;
    require(
        check_quantization(context, pack_quantized_call, "the step", source,
                           {step.input, step.output, adds ? step.output : DISTILE_FLOAT32, step.extents.out_channels}));
}

}  // namespace

}  // namespace distile

using namespace distile;

extern "C" {

distile_status distile_run_stage(distile_context *context, const distile_stage_args *args) {
    constexpr const char *call = "distile_run_stage";
    constexpr auto check = [](distile_context *, const char *, const distile_stage_args &) { return DISTILE_OK; };
    return call_with(context, call, args, +check, [&] {
        context->device->run_stage(checked_stage(context, *args, target_of(context, call)), nullptr);
    });
}

distile_status distile_trace_stage(distile_context *context, const distile_stage_args *args, distile_stage_item *items,
                                   int64_t capacity, int64_t *count) {
    constexpr const char *call = "distile_trace_stage";
    constexpr auto check = [](distile_context *, const char *, const distile_stage_args &) { return DISTILE_OK; };
    return call_with(context, call, args, +check, [&] {
        require(check_pointers(context, call, {{count, "pointer to the number of items"}}));
        if (capacity < 0 || (capacity > 0 && !items)) {
            throw Failure{fail(context, DISTILE_ERROR_BAD_VALUE, "%s: room for %lld items at %s", call,
                               static_cast<long long>(capacity), items ? "their place" : "null")};
        }
        StageTrace trace;
        context->device->run_stage(checked_stage(context, *args, target_of(context, call)), &trace);
        *count = static_cast<int64_t>(trace.items.size());
        std::copy_n(trace.items.begin(), std::min(*count, capacity), items);
    });
}

int64_t distile_stage_weights_bytes(const distile_context *context, distile_dtype dtype, int32_t out_channels,
                                    int32_t in_channels, int32_t kernel_h, int32_t kernel_w, int32_t groups) {
    const StageTarget *const target = context ? context->device->stage_target() : nullptr;
    const StageFilter filter{out_channels, in_channels, kernel_h, kernel_w, groups};
    const bool is_possible =
        target && find_type(raw(dtype)) && target->packs(dtype) && target->is_possible(filter, dtype);
    return is_possible ? target->weight_bytes(filter, dtype) : 0;
}

distile_status distile_pack_stage_weights(distile_context *context, distile_dtype dtype, int32_t out_channels,
                                          int32_t in_channels, int32_t kernel_h, int32_t kernel_w, int32_t groups,
                                          const float *weights, void *packed) {
    constexpr const char *call = "distile_pack_stage_weights";
    if (!context) {
        return fail_null(call, "context");
    }
    return guarded(context, call, [&] {
        const StageTarget &target = target_of(context, call);
        require(check_pointers(context, call, {{weights, "weights"}, {packed, "memory for packed weights"}}));
        if (!find_type(raw(dtype)) || !target.packs(dtype)) {
            return fail(context, DISTILE_ERROR_BAD_TYPE, "%s: the type is %s; weights of stages are %s here", call,
                        TypeText(raw(dtype)).text, target.weight_types);
        }
        const StageFilter filter{out_channels, in_channels, kernel_h, kernel_w, groups};
        if (!target.is_possible(filter, dtype)) {
            return fail(
                context, DISTILE_ERROR_BAD_CHANNELS,
                "%s: a convolution of %d x %d from %d to %d channels in %d groups; stages take multiples of %d, "
                "in %s here",
                call, kernel_h, kernel_w, in_channels, out_channels, groups, target.channels_at_once(dtype),
                target.group_text());
        }
        target.pack(filter, dtype, weights, packed);
        return DISTILE_OK;
    });
}

int64_t distile_quantized_stage_weights_bytes(const distile_context *context, const distile_quantized_step *step) {
    const StageTarget *const target = context ? context->device->stage_target() : nullptr;
    if (!target || !step || !is_quantized(raw(step->input))) {
        return 0;
    }
    const std::optional<StageFilter> filter = filter_of(*step);
    return filter && target->is_possible(*filter, step->input) ? target->quantized_bytes(*filter) : 0;
}

distile_status distile_pack_quantized_stage_weights(distile_context *context, const distile_quantized_step *step,
                                                    const distile_weights_source *source, void *packed) {
    constexpr const char *call = pack_quantized_call;
    if (!context) {
        return fail_null(call, "context");
    }
    return guarded(context, call, [&] {
        const StageTarget &target = target_of(context, call);
        require(
            check_pointers(context, call, {{step, "step"}, {source, "source"}, {packed, "memory for packed weights"}}));
        const StageFilter filter = check_quantized_step(context, target, *step);
        check_quantized_source(context, *step, *source);
        const bool in_output_units =
            is_quantized(raw(step->output)) &&
            (raw(step->activation) == DISTILE_ACTIVATION_NONE || raw(step->activation) == DISTILE_ACTIVATION_RELU);
        const QuantizedOperator quantized{step->input, step->output, in_output_units};
        const FloatFilter weights(*context, *source,
                                  filter.taps() * filter.out_channels * (filter.in_channels / filter.groups));
        target.pack_quantized(filter, {*source, weights.values(), &quantized, step->input}, packed);
        return DISTILE_OK;
    });
}

}  // extern "C"
